// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/warden_copy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "proto/os/process.h"
#include "proto/os/process_title.h"

namespace ivy {
namespace {

constexpr int kTransportFd = 3;
// How long to wait for an unused copy to exit. Its connection closes, which it detects immediately.
constexpr int kTimeoutMs = 1000;
constexpr int kReapTries = 50;

// Moves a descriptor above the standard streams: if one of those is closed, its number is free, and
// the transport would be used as that stream.
void leave_standard_streams(Descriptor& end) {
  if (end.get() < kTransportFd) end.reset(fcntl(end.get(), F_DUPFD_CLOEXEC, kTransportFd));
}

// Gives the copy the process state that an exec would have made, as far as the warden does not do
// that itself.
[[noreturn]] void run_warden(const WardenOrder& order, int transport, WardenCopy::Main main,
                             bool has_reaper) noexcept {
  setsid();
  dup2(transport, kTransportFd);
  // The descriptor may have had this number already, and would then close on exec.
  fcntl(kTransportFd, F_SETFD, 0);
  // Before Linux 5.9 the warden does this a moment later.
  syscall(SYS_close_range, static_cast<unsigned>(kTransportFd + 1), ~0u, 0u);
  for (int number = 1; number < NSIG; ++number) std::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<std::string> words = warden_arguments(order);
  if (has_reaper) words.insert(words.end(), {"--reaper", "parent"});
  set_process_title(words);
  _exit(main(static_cast<int>(words.size()), exec_array(words).data()));
}

}  // namespace

std::vector<std::string> warden_arguments(const WardenOrder& order) {
  return {order.program,    "warden",
          "--job",          order.job_id,
          "--host",         std::to_string(order.host),
          "--transport-fd", std::to_string(kTransportFd),
          "--transport",    "local"};
}

WardenCopy::WardenCopy(WardenOrder order, Parts parts)
    : order_(std::move(order)), parts_(std::move(parts)) {}

std::shared_ptr<WardenCopy> WardenCopy::start(const WardenOrder& order, Main main, bool reaps) {
  if (main == nullptr || __libc_single_threaded == 0) return nullptr;
  DescriptorPair ends = make_stream_pair();
  if (!ends) return nullptr;
  leave_standard_streams(ends.first);
  leave_standard_streams(ends.second);
  if (!ends.first || !ends.second) return nullptr;
  const bool has_reaper = reaps && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
  const pid_t pid = fork();
  if (pid == 0) run_warden(order, ends.second.get(), main, has_reaper);
  if (pid < 0) {
    if (has_reaper) prctl(PR_SET_CHILD_SUBREAPER, 0);
    return nullptr;
  }
  return std::shared_ptr<WardenCopy>(new WardenCopy(order, {pid, std::move(ends.first)}));
}

WardenCopy::~WardenCopy() {
  if (!parts_) return;
  // Stops adopting orphans: programs that this process starts later may leave processes behind.
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  parts_->transport.reset();
  pollfd ended{open_pidfd(parts_->pid), POLLIN, 0};
  const Descriptor process(ended.fd);
  if (poll(&ended, 1, kTimeoutMs) != 1) return;
  // The descriptor may be readable some milliseconds before the process can be reaped.
  for (int i = 0; i < kReapTries && waitpid(parts_->pid, nullptr, WNOHANG) == 0; ++i)
    poll(nullptr, 0, static_cast<int>(kReapPause.count()));
}

std::optional<WardenCopy::Parts> WardenCopy::take(const WardenOrder& order) {
  if (order != order_) return std::nullopt;
  return std::exchange(parts_, std::nullopt);
}

}  // namespace ivy
