// What a host's part of a job says of itself at its end: the supervisor's exit code, and what a
// launcher that takes over is told of the output. Pure; thread: any.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/node/output_pump.h"
#include "proto/job.pb.h"
#include "proto/link.h"

namespace ivy {

// The fate of this generation's workers, from the events that tell of them.
class JobOutcome {
 public:
  void note(const Event& event);
  void forget() { *this = JobOutcome(); }
  // Of a host without leftovers: one of supervisor.h's codes.
  int exit_code(bool has_workers, bool launcher_lost) const;

 private:
  bool worker_failed_ = false;     // By itself, before any stop.
  bool worker_was_ended_ = false;  // After one.
};

// How far each stream of `generation` has been given to a launcher. `waiting` are the chunks that
// the session still holds: they will be sent to the new one.
TakenOver streams_taken_over(const std::vector<OutputPump::Progress>& progress,
                             const std::vector<link::OutputChunk>& waiting,
                             std::uint32_t generation);

}  // namespace ivy
