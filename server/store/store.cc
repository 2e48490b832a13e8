#include "server/store/store.h"

#include "absl/strings/str_cat.h"

namespace sis {

std::string ToString(const SequenceIdentity& sequence) {
  return absl::StrCat("sequence '", sequence.id, "' attempt ", sequence.attempt, " of run '",
                      sequence.run_id, "' incarnation ", sequence.incarnation);
}

StoredRun Merged(const StoredRun& there, const StoredRun& put) {
  const std::pair before(there.incarnation, there.deleted());
  const std::pair now(put.incarnation, put.deleted());
  if (now != before) return now > before ? put : there;
  StoredRun merged = put.policy_version > there.policy_version ? put : there;
  merged.labels = there.labels;
  AddVersionLabels(put.labels, merged.labels);
  return merged;
}

}  // namespace sis
