// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/lease.h"

#include <algorithm>
#include <utility>

namespace ivy {

void Lease::enter(LeaseState state) {
  state_ = state;
  elapsed_ns_ = 0;
  reason_.clear();
}

void Lease::end(std::string reason) {
  state_ = LeaseState::kEnded;
  reason_ = std::move(reason);
}

void Lease::link_attached(LinkPeer peer) {
  peer_ = peer;
  enter(LeaseState::kAttached);
}

void Lease::received() {
  if (state_ == LeaseState::kAttached || state_ == LeaseState::kPaused)
    enter(LeaseState::kAttached);
}

void Lease::paused() {
  if (state_ == LeaseState::kAttached) enter(LeaseState::kPaused);
}

void Lease::link_lost(LinkLoss loss) {
  if (state_ == LeaseState::kEnded) return;
  if (outlives_launcher_) return enter(LeaseState::kHungUp);
  // Without a relay, a link is lost only when the launcher exits.
  if (peer_ == LinkPeer::kLauncher) return end("the launcher exited");
  enter(loss == LinkLoss::kHalfClosed ? LeaseState::kHalfClosed : LeaseState::kHungUp);
}

void Lease::advance(std::uint64_t elapsed_ns) {
  elapsed_ns_ += std::min(elapsed_ns, limits_.longest_step_ns);
  const auto seconds = [](std::uint64_t ns) { return std::to_string(ns / kNanosPerSecond) + " s"; };
  const std::uint64_t absence_ns = outlives_launcher_ ? limits_.silence_ns : limits_.absence_ns;
  switch (state_) {
    case LeaseState::kAttached:
      if (peer_ == LinkPeer::kRelay && elapsed_ns_ >= limits_.silence_ns)
        end("lease: received nothing from the launcher for " + seconds(limits_.silence_ns));
      return;
    case LeaseState::kHalfClosed:
      if (elapsed_ns_ >= limits_.half_closed_ns) end("the launcher closed its connection");
      return;
    case LeaseState::kHungUp:
      if (elapsed_ns_ >= absence_ns)
        end("lease: no connection from the launcher for " + seconds(absence_ns));
      return;
    case LeaseState::kPaused: {
      const std::uint64_t pause_ns = std::max(limits_.pause_ns, limits_.silence_ns);
      if (peer_ == LinkPeer::kRelay && elapsed_ns_ >= pause_ns)
        end("lease: the launcher has been suspended for " + seconds(pause_ns));
      return;
    }
    case LeaseState::kWaiting:
    case LeaseState::kEnded:
      return;
  }
}

}  // namespace ivy
