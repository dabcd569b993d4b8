// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/processor_share.h"

#include <fcntl.h>
#include <sched.h>

#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {

ProcessorShare share_of(std::size_t workers, std::size_t processors) {
  if (workers <= processors) return {};
  // The kernel multiplies a weight by 1.25 for each step of nice. Nine times the weight is enough:
  // with a thousand times, the rest of the machine would stall while many workers start.
  constexpr double kStep = 1.25;
  constexpr double kHalfStep = 1.1180339887;
  constexpr int kLast = 10;
  // Rounds to the nearest step. Avoids log(), because the static C library's version is selected by
  // processor at run time, which ivyrun cannot link.
  int steps = 0;
  for (double weight = kHalfStep; steps < kLast && weight <= static_cast<double>(workers); ++steps)
    weight *= kStep;
  return {.own_sessions = false, .autogroup_nice = -steps};
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
  // If the user lacks permission, the shared session keeps the weight of a single one.
  if (file) write_all(file.get(), std::to_string(share.autogroup_nice));
}

}  // namespace ivy
