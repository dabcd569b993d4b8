#include "rendezvous/server/job_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/contract/exit_code.h"
#include "proto/os/process.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;

// The most connections that wait while a process is asked whether it can rest, which it answers at
// once.
constexpr std::size_t kMaxWaiting = 1024;

void limit(int what, std::uint64_t most) {
  if (most == 0) return;
  const rlimit both{most, most};
  setrlimit(static_cast<__rlimit_resource>(what), &both);
}

// Runs in the child of a process with one thread, so ordinary functions are allowed.
[[noreturn]] void become_store(std::vector<std::string> arguments, JobProcess::Limits limits,
                               pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitInternal);
  for (const int signal : {SIGINT, SIGHUP, SIGCHLD, SIGPIPE, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
#ifndef __SANITIZE_ADDRESS__  // It needs more address space than any limit.
  limit(RLIMIT_DATA, limits.memory_bytes);
#endif
  limit(RLIMIT_NOFILE, limits.descriptors);

  execv("/proc/self/exe", exec_words(arguments).data());
  _exit(kExitInternal);
}

}  // namespace

JobProcess::JobProcess(boost::asio::io_context& loop, std::vector<std::string> arguments,
                       Limits limits, std::function<void(const std::string&)> over)
    : loop_(loop),
      arguments_(std::move(arguments)),
      limits_(limits),
      over_(std::move(over)),
      channel_(loop) {}

JobProcess::~JobProcess() { end(); }

void JobProcess::end() {
  boost::system::error_code ignored;
  if (channel_.is_open()) channel_.close(ignored);
  waiting_.clear();
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, 0), nullptr, 0);
}

Result<void> JobProcess::pass(Knock knock) {
  if (asked_to_rest_ && waiting_.size() >= kMaxWaiting)
    return Error{Code::kResourceExhausted, "too many connections wait for the job's store"};
  if (asked_to_rest_) {
    waiting_.push_back(std::move(knock));
    return {};
  }
  if (pid_ == 0) IVY_CHECK(spawn());
  return send(knock);
}

Result<void> JobProcess::spawn() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return errno_error(Code::kUnavailable, "start the job's store", errno);
  Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  std::vector<std::string> words = arguments_;
  words.insert(words.end(), {"--adopt-fd", std::to_string(ends[1])});
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    fcntl(ends[1], F_SETFD, 0);
    become_store(std::move(words), limits_, parent);
  }
  if (child < 0) return errno_error(Code::kUnavailable, "start the job's store", errno);
  pid_ = child;
  asked_to_rest_ = false;
  channel_.assign(ours.release());
  wait();
  return {};
}

Result<void> JobProcess::send(Knock& knock) {
  iovec bytes{knock.greeting.data(), knock.greeting.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = knock.socket.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  // The send must not block: if the channel is full, this job's process is stuck, and the front
  // must go on.
  if (sendmsg(channel_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
  return errno_error(Code::kUnavailable, "hand a connection to the job's store", errno);
}

void JobProcess::wait() {
  channel_.async_wait(stream_descriptor::wait_read,
                      [self = shared_from_this()](const boost::system::error_code& error) {
                        if (!error) self->on_readable();
                      });
}

void JobProcess::on_readable() {
  std::array<char, 16> bytes{};
  const ssize_t count = recv(channel_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return on_ended();
  const std::string_view word(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (word == kIdle) {
    asked_to_rest_ = ::send(channel_.native_handle(), kRest.data(), kRest.size(),
                            MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  } else if (word == kBusy) {
    asked_to_rest_ = false;
    for (Knock& knock : std::exchange(waiting_, {}))
      (void)send(knock).ok();  // A client that is not passed on dials again.
  }
  wait();
}

void JobProcess::on_ended() {
  const auto self = shared_from_this();  // The caller may forget us in over_().
  channel_.close();
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  const bool rests = WIFEXITED(status) && WEXITSTATUS(status) == 0 && asked_to_rest_;
  asked_to_rest_ = false;
  if (!rests) waiting_.clear();
  for (Knock& knock : std::exchange(waiting_, {})) (void)pass(std::move(knock)).ok();
  if (pid_ != 0) return;
  over_(rests ? std::string()
        : WIFSIGNALED(status)
            ? std::string("killed by signal ") + std::to_string(WTERMSIG(status)) + " (" +
                  strsignal(WTERMSIG(status)) + ")"
            : "exit code " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace ivy::store
