#include "server/store/store.h"

#include "absl/strings/str_cat.h"

namespace sis {

std::string ToString(const SequenceIdentity& sequence) {
  return absl::StrCat("sequence '", sequence.id, "' attempt ", sequence.attempt, " of run '",
                      sequence.run_id, "' incarnation ", sequence.incarnation);
}

}  // namespace sis
