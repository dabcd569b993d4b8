// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/job_outcome.h"

#include <map>
#include <utility>

namespace ivy {

void JobOutcome::note(const Event& event) {
  const Exited& exited = event.exited();
  if (event.has_exited() && exited.after_stop()) worker_was_ended_ = true;
  if (event.has_exited() && !exited.after_stop())
    worker_failed_ |= exited.code() != 0 || exited.signal() != 0;
  if (event.has_start_failed()) worker_failed_ = true;
  has_leftovers_ |= event.has_report() && !event.report().clean();
}

int JobOutcome::exit_code(bool has_workers, bool launcher_lost) const {
  if (worker_failed_) return kSupervisorWorkerFailed;
  if (worker_was_ended_) return launcher_lost ? kSupervisorLauncherLost : kSupervisorStopped;
  return has_workers ? kSupervisorWell : kSupervisorNothingRan;
}

TakenOver streams_taken_over(const std::vector<OutputPump::Progress>& progress,
                             const std::vector<link::OutputChunk>& waiting,
                             std::uint32_t generation) {
  struct Rest {
    std::uint64_t bytes = 0;
    bool has_end = false;
  };
  std::map<std::pair<std::uint32_t, std::uint8_t>, Rest> rests;
  for (const link::OutputChunk& chunk : waiting) {
    Rest& rest = rests[{chunk.rank, chunk.stream}];
    rest.bytes += chunk.bytes.size();
    rest.has_end |= chunk.end;
  }
  TakenOver taken;
  taken.set_generation(generation);
  for (const OutputPump::Progress& stream : progress) {
    if (stream.name.generation != generation) continue;
    const Rest rest = rests[{stream.name.rank, stream.name.stream}];
    StreamPosition& position = *taken.add_streams();
    position.set_rank(stream.name.rank);
    position.set_stream(stream.name.stream);
    position.set_bytes(stream.bytes - rest.bytes);
    position.set_ended(stream.ended && !rest.has_end);
  }
  return taken;
}

}  // namespace ivy
