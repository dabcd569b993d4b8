#include "agent/node/spawn/processor_share.h"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {

ProcessorShare share_of(std::size_t workers, std::size_t processors) {
  if (workers <= processors) return {};
  // The kernel multiplies a weight by 1.25 for each step of nice. Nine times the weight is enough:
  // with a thousand times, everything else on the machine would stand still while many workers
  // start.
  constexpr double kStep = 1.25;
  constexpr double kLast = 10;
  const double steps = std::round(std::log(static_cast<double>(workers)) / std::log(kStep));
  return {.own_sessions = false, .autogroup_nice = -static_cast<int>(std::min(steps, kLast))};
}

std::size_t own_processor_count() {
  std::vector<unsigned long> words((kMaxProcessorNumber + 1) / (8 * sizeof(unsigned long)));
  const std::size_t bytes = words.size() * sizeof(unsigned long);
  auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
  if (sched_getaffinity(0, bytes, set) != 0) return 1;
  return static_cast<std::size_t>(CPU_COUNT_S(bytes, set));
}

void apply_share(const ProcessorShare& share) {
  if (share.autogroup_nice == 0) return;
  const Descriptor file(open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
  // Where the user may not say so, the shared session keeps the weight of one.
  if (file) write_all(file.get(), std::to_string(share.autogroup_nice));
}

}  // namespace ivy
