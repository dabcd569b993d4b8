// A reader of JSON into the values of plain_pickle.h, within the same limits. Pure; thread: any.
#pragma once

#include <string_view>

#include "launcher/hang/plain_pickle.h"

namespace ivy {

// DataLoss says at which byte what could not be read. Of keys that repeat the last one counts.
Result<PlainPointer> read_plain_json(std::string_view bytes, const PickleLimits& limits);

}  // namespace ivy
