// Tells which of torch's keys are written once by construction. Pure. Thread: any.
#pragma once

#include <string_view>

namespace ivy::store {

// torch has no operation that writes once. But what its process groups publish about themselves (an
// NCCL unique id, a Gloo rank's addresses) is: below "default_pg", a group's number, what it runs
// on, and a last part. Counters, barriers and keys that a script keeps in the default store do not
// match: they have fewer parts. If such a key is written again in spite of its name, the leaves
// that hold it are told.
bool write_once_by_name(std::string_view torch_key);

}  // namespace ivy::store
