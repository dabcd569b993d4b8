// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/attached_process.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <boost/system/error_code.hpp>
#include <chrono>
#include <iterator>
#include <utility>

#include "agent/node/workers/ending.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;
using comm_status::RankState;
using comm_status::RankStatus;
using std::chrono::milliseconds;

// The kernel knows the exit status of a process once its parent, a shell, has reaped it. The status
// is queried again after these delays; after the fourth attempt the exit is reported to the other
// ranks anyway.
constexpr milliseconds kStatusDelays[] = {milliseconds(1), milliseconds(3), milliseconds(10),
                                          milliseconds(50), milliseconds(200)};
constexpr std::size_t kReportedAtAttempt = 3;

// The first version of struct pidfd_info (Linux 6.13); `exit_code` is valid since 6.15.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t ids[11];
  std::int32_t exit_code;  // In the form of waitpid's status.
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr std::uint64_t kPidfdInfoExit = 1u << 3;

// Returns the exit status of a process that is not our child and whose pidfd is readable. The
// kernel provides it since Linux 6.15, once the parent has reaped the process. Returns std::nullopt
// while it is unknown.
std::optional<ExitStatus> exit_status_by_pidfd(int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (ioctl(pidfd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0)
    return std::nullopt;
  const int status = info.exit_code;
  if (WIFSIGNALED(status)) return ExitStatus{.signal = WTERMSIG(status)};
  return ExitStatus{.code = WEXITSTATUS(status)};
}

}  // namespace

RankStatus ended_status(const std::optional<ExitStatus>& exit, pid_t pid) {
  RankStatus status;
  status.state = !exit               ? RankState::kDied
                 : exit->signal != 0 ? RankState::kSignalled
                                     : RankState::kExited;
  if (exit) status.code = exit->signal != 0 ? exit->signal : exit->code;
  status.pid = pid;
  status.when_ns = monotonic_ns();
  return status;
}

AttachedProcess::AttachedProcess(boost::asio::io_context& loop, AttachedProcessEvents& owner,
                                 std::uint32_t rank, bool is_our_child,
                                 const ControlConnections::Pointer& connection)
    : owner_(owner),
      rank_(rank),
      pid_(connection->pid),
      is_our_child_(is_our_child),
      connection_(connection),
      pidfd_(loop),
      timer_(loop) {}

bool AttachedProcess::is_informed(std::uint64_t now_ns) const {
  if (has_ended_) return false;
  return !has_left() || now_ns - left_at_ns_ < Ending::kWarningNs;
}

void AttachedProcess::watch(Descriptor pidfd) {
  if (!pidfd) return;
  pidfd_.assign(pidfd.release());
  pidfd_.async_wait(stream_descriptor::wait_read,
                    [weak = weak_from_this()](const error_code& error) {
                      const auto self = weak.lock();
                      if (!error && self) self->check_exit(0);
                    });
}

void AttachedProcess::set_our_child() {
  is_our_child_ = true;
  stop_watching();
}

void AttachedProcess::stop_watching() {
  timer_.cancel();
  error_code ignored;
  pidfd_.close(ignored);
}

void AttachedProcess::check_exit(std::size_t attempt) {
  owner_.read_rest_of(rank_);
  if (has_left() || is_our_child_) return;
  const std::optional<ExitStatus> exit =
      exit_ ? exit_ : exit_status_by_pidfd(pidfd_.native_handle());
  if (exit || attempt == kReportedAtAttempt) owner_.process_ended(*this, ended_status(exit, pid_));
  if (exit || attempt >= std::size(kStatusDelays)) return;
  timer_.expires_after(kStatusDelays[attempt]);
  timer_.async_wait([weak = weak_from_this(), attempt](const error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->check_exit(attempt + 1);
  });
}

void AttachedProcess::leave(std::uint64_t now_ns) {
  left_at_ns_ = now_ns;
  stop_watching();
}

std::optional<RankStatus> AttachedProcess::unreported_end() {
  if (has_left() || has_ended_ || !pidfd_.is_open()) return std::nullopt;
  const int fd = pidfd_.native_handle();
  pollfd waiting{fd, POLLIN, 0};
  if (poll(&waiting, 1, 0) != 1) return std::nullopt;
  return ended_status(exit_status_by_pidfd(fd), pid_);
}

}  // namespace ivy
