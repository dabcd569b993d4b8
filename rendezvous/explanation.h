// Who waits for whom, as text for people: which keys are missing, who waits for them and how long,
// and which ranks have said nothing since. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/engine.h"

namespace ivy::store {

// Several lines without the last newline; "nobody waits" when nobody does. At most 64 lines.
std::string explain(const Picture& picture, std::uint64_t now_ns);

}  // namespace ivy::store
