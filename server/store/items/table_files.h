// How RocksDB writes files here: tables take what is in them, and no more beforehand. Else a merge
// whose result is a few kilobytes would take 70 MB for the time, which are missed on a full disk.
// Its log keeps that habit, so that what is logged always finds room.
#pragma once

#include <rocksdb/env.h>

#include <memory>

namespace sis {

// Must outlive the database.
std::unique_ptr<rocksdb::Env> TablesTakeWhatTheyHold();

}  // namespace sis
