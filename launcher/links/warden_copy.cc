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
// Longest wait for an unused copy to exit: its supervisor detects the closed connection
// immediately.
constexpr int kPatienceMs = 1000;

// If a standard stream is closed, its number is free: a transport with that number would be read
// and written as that stream.
void leave_standard_streams(Descriptor& end) {
  if (end.get() < kTransportFd) end.reset(fcntl(end.get(), F_DUPFD_CLOEXEC, kTransportFd));
}

// Sets up the process state that exec would have provided, as far as the warden does not.
[[noreturn]] void go_on(const WardenOrder& order, int transport, WardenCopy::Main main,
                        bool has_reaper) noexcept {
  setsid();
  dup2(transport, kTransportFd);
  fcntl(kTransportFd, F_SETFD, 0);  // It may have had this number already, and closes on exec then.
  // Before Linux 5.9 the warden does it, a moment later.
  syscall(SYS_close_range, static_cast<unsigned>(kTransportFd + 1), ~0u, 0u);
  for (int number = 1; number < NSIG; ++number) std::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<std::string> words = warden_words(order);
  if (has_reaper) words.insert(words.end(), {"--reaper", "parent"});
  set_process_title(words);
  _exit(main(static_cast<int>(words.size()), exec_words(words).data()));
}

}  // namespace

std::vector<std::string> warden_words(const WardenOrder& order) {
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
  leave_standard_streams(ends.ours);
  leave_standard_streams(ends.theirs);
  if (!ends.ours || !ends.theirs) return nullptr;
  const bool has_reaper = reaps && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
  const pid_t pid = fork();
  if (pid == 0) go_on(order, ends.theirs.get(), main, has_reaper);
  if (pid < 0) return nullptr;
  return std::shared_ptr<WardenCopy>(new WardenCopy(order, {pid, std::move(ends.ours)}));
}

WardenCopy::~WardenCopy() {
  if (!parts_) return;
  // No longer adopt orphans: programs that this process starts later may leave processes behind.
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  parts_->transport.reset();
  pollfd ended{open_pidfd(parts_->pid), POLLIN, 0};
  const Descriptor process(ended.fd);
  if (poll(&ended, 1, kPatienceMs) == 1) waitpid(parts_->pid, nullptr, WNOHANG);
}

std::optional<WardenCopy::Parts> WardenCopy::take(const WardenOrder& order) {
  if (order != order_) return std::nullopt;
  return std::exchange(parts_, std::nullopt);
}

}  // namespace ivy
