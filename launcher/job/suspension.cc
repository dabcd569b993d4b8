#include "launcher/job/suspension.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {

using std::chrono::milliseconds;

void Suspension::begin(std::function<void()> ready) {
  job_.signal_workers(SIGSTOP);
  milliseconds longest = kPauseLimit;
  bool has_others = false;
  for (HostRecord& host : job_.hosts) {
    has_others |= !host.on_this_host;
    if (!host.session) continue;
    host.session->pause();
    longest = std::max(longest, host.session->lease());
  }
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(longest).count();
  if (has_others)
    job_.screen.note("suspended; the other hosts stop the job if it is not resumed within " +
                     std::to_string(minutes) + " min");
  // The loop needs a moment to push it out to the carriers, and longer for one that is behind or
  // is being redialled. Ctrl-Z must not seem to do nothing, though.
  wait(std::move(ready), monotonic_ns() + 2'000'000'000);
}

void Suspension::wait(std::function<void()> ready, std::int64_t until_ns) {
  timer_.expires_after(milliseconds(100));
  timer_.async_wait([this, ready = std::move(ready),
                     until_ns](const boost::system::error_code& error) mutable {
    if (error) return;
    const auto has_paused = [](const HostRecord& host) {
      return !host.session || host.session->has_paused();
    };
    if (monotonic_ns() >= until_ns || std::all_of(job_.hosts.begin(), job_.hosts.end(), has_paused))
      return ready();
    wait(std::move(ready), until_ns);
  });
}

void Suspension::end() {
  for (HostRecord& host : job_.hosts)
    if (host.session) host.session->resume();
  job_.signal_workers(SIGCONT);
}

}  // namespace ivy
