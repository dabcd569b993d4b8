// May the ranks of one machine all run at once? Only then does waiting spin.
//
// Pure but for own_processors(). Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ivy::comm {

// Numbers of processors, ascending.
using Processors = std::vector<std::uint32_t>;

// Those that this process may run on.
Processors own_processors();

// "0-3,8"; what is no such list is empty.
std::string processors_text(const Processors& processors);
Processors processors_from(const std::string& text);

// Is there an own processor for every rank (each may run on those of its list)? Empty list: nothing
// is known of that rank, and it counts as one that has none.
bool have_processor_each(const std::vector<Processors>& ranks);

// Are there more than two ranks for each processor that any of them may run on?
bool are_crowded(const std::vector<Processors>& ranks);

}  // namespace ivy::comm
