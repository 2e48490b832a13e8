#include "server/store/items/table_files.h"

#include <rocksdb/file_system.h>

namespace sis {
namespace {

class Files final : public rocksdb::FileSystemWrapper {
 public:
  Files() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  const char* Name() const override { return "sis.TablesTakeWhatTheyHold"; }
  rocksdb::FileOptions OptimizeForCompactionTableWrite(
      const rocksdb::FileOptions& options,
      const rocksdb::ImmutableDBOptions& database) const override {
    rocksdb::FileOptions of_tables = target()->OptimizeForCompactionTableWrite(options, database);
    of_tables.allow_fallocate = false;
    return of_tables;
  }
};

}  // namespace

std::unique_ptr<rocksdb::Env> TablesTakeWhatTheyHold() {
  return rocksdb::NewCompositeEnv(std::make_shared<Files>());
}

}  // namespace sis
