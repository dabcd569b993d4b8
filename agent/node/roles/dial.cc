// SPDX-License-Identifier: Apache-2.0
// run_dial() reads the order from standard input and starts Dialer::run(), a loop that, in each
// turn, reaps children, starts a transport if one is due (dial_when_due()), prints the reason if
// none gets through (report_failure_when_due()), and reports the scheduler's signals
// (forward_signals_when_due()).
#include "agent/node/roles/dial.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/roles/dial_transport.h"
#include "agent/node/roles/relay.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/wire/dial_wire.h"

namespace ivy {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The transport in use, one that is being dialled in addition, and one that is exiting.
constexpr std::size_t kMaxTransports = 3;
// Signals that a scheduler sends to a step to notify it. The dialer ignores all others.
constexpr std::array<int, 3> kForwardedSignals = {SIGTERM, SIGUSR1, SIGUSR2};

int complain(const std::string& node, const std::string& what) {
  std::fprintf(stderr, "ivy-node: %s: %s\n", node.c_str(), what.c_str());
  return kDialFailed;
}

// Returns Slurm's name of this node, or else its host name.
std::string node_name() {
  const char* const named = std::getenv("SLURMD_NODENAME");
  if (named != nullptr && *named != '\0') return named;
  utsname system{};
  uname(&system);
  return system.nodename;
}

Result<DialOrder> read_order(int fd) {
  const Clock::time_point deadline = steady_now() + milliseconds(kDialOrderTimeoutMs);
  const std::string end = "\n" + std::string(kDialOrderEnd) + "\n";
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_now()).count();
    pollfd waiting{fd, POLLIN, 0};
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) == 0)
      return Error{Code::kDeadlineExceeded,
                   "srun did not pass on the launcher's order within 120 s"};
    std::array<char, 4096> buffer;
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return Error{Code::kCancelled, "the launcher exited before it sent its order"};
    const std::size_t checked_at = text.size() < end.size() ? 0 : text.size() - end.size();
    text.append(buffer.data(), static_cast<std::size_t>(count));
    // The text after the order is meant for hosts that still have to install ivy-node.
    const std::size_t found = text.find(end, checked_at);
    if (found != std::string::npos)
      return parse_dial_order(std::string_view(text).substr(0, found + end.size()));
    if (text.size() > kDialOrderMaxBytes)
      return Error{Code::kResourceExhausted, "the launcher's order is too long"};
  }
}

// In torchrun mode the ivyrun that started us represents this host: when it is killed, so are we,
// and the supervisor notices. Returns false if it has exited already, which a closed input shows.
bool end_with_our_parent() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) <= 0 || (input.revents & POLLHUP) == 0;
}

class Dialer {
 public:
  Dialer(DialOrder order, std::uint32_t host, std::string node)
      : order_(std::move(order)), host_(host), node_(std::move(node)) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    signal_fd_ = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
  }

  int run() {
    for (;;) {
      if (const std::optional<int> exit_code = finished()) return *exit_code;
      dial_when_due();
      report_failure_when_due();
      forward_signals_when_due();
      wait();
    }
  }

 private:
  struct Transport {
    pid_t pid = 0;
    Descriptor event_fd;
    std::string event_line;  // The start of an incomplete line.
    bool is_up = false;
    bool has_ended = false;  // The launcher has closed its side: another transport is needed.
    Clock::time_point received_at;
    std::vector<int> signals;  // Signals that the transport received too.
  };
  struct Signal {
    int number = 0;
    Clock::time_point due;
  };

  std::optional<int> finished() {
    const bool is_childless = reap();
    if (!transports_.empty()) return std::nullopt;
    if (job_was_up_) return is_childless ? std::optional<int>(0) : std::nullopt;
    if (last_exit_ == kRelayFailed || last_exit_ == kRelayNoSuchJob) return complain(node_, why_);
    if (steady_now() - began_ < milliseconds(kFirstDialTimeoutMs)) return std::nullopt;
    return complain(node_, why_.empty() ? "the launcher did not answer" : why_);
  }

  // Returns true if no child is left, which for a subreaper means no descendant.
  bool reap() {
    for (;;) {
      int status = 0;
      const pid_t ended = waitpid(-1, &status, WNOHANG);
      if (ended <= 0) return ended < 0 && errno == ECHILD;
      const auto transport = std::find_if(transports_.begin(), transports_.end(),
                                          [&](const Transport& one) { return one.pid == ended; });
      if (transport == transports_.end()) continue;
      read_events(*transport);
      last_exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : kDialOver;
      // If the supervisor closed a transport, it was the job's last one or was rejected: wait
      // longer.
      const bool is_quick = transport->has_ended || !transport->is_up || !WIFEXITED(status);
      next_dial_ = std::max(next_dial_, steady_now() + (transport->has_ended ? milliseconds(0)
                                                        : is_quick ? milliseconds(kDialPauseMs)
                                                                   : milliseconds(1'000)));
      transports_.erase(transport);
    }
  }

  bool is_served() const {
    return std::any_of(transports_.begin(), transports_.end(),
                       [](const Transport& transport) { return !transport.has_ended; });
  }

  // Returns true if the launcher has been silent for long and the last dial was not recent.
  bool wants_another_transport() const {
    const Clock::time_point now = steady_now();
    const bool all_silent =
        std::all_of(transports_.begin(), transports_.end(), [&](const Transport& transport) {
          return transport.is_up && now - transport.received_at > order_.silence;
        });
    return all_silent && now - dialled_at_ > order_.silence / 2;
  }

  void dial_when_due() {
    if (transports_.size() >= kMaxTransports || steady_now() < next_dial_) return;
    if (is_served() && !wants_another_transport()) return;
    DialGreeting greeting;
    greeting.host = host_;
    DescriptorPair ends = make_pipe(O_NONBLOCK);
    if (!ends) return;
    dialled_at_ = steady_now();
    next_dial_ = dialled_at_ + milliseconds(kDialPauseMs);
    const pid_t pid = fork_attempt({&order_, greeting, ends.second.get()});
    if (pid < 0) return;
    Transport transport;
    transport.pid = pid;
    transport.event_fd = std::move(ends.first);
    transport.received_at = dialled_at_;
    transports_.push_back(std::move(transport));
  }

  pid_t fork_attempt(const DialAttempt& attempt) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_NAME, "ivy-dial");
    // Only the dialer may use standard input and output.
    const int null_fd = open("/dev/null", O_RDWR);
    dup2(null_fd, STDIN_FILENO);
    dup2(null_fd, STDOUT_FILENO);
    _exit(run_dial_transport(attempt));
  }

  void read_events(Transport& transport) {
    std::array<char, 4096> buffer;
    ssize_t count = 0;
    while ((count = read(transport.event_fd.get(), buffer.data(), buffer.size())) > 0)
      transport.event_line.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = transport.event_line.find('\n'); end != std::string::npos;
         end = transport.event_line.find('\n')) {
      handle_event(transport, transport.event_line.substr(0, end));
      transport.event_line.erase(0, end + 1);
    }
  }

  void handle_event(Transport& transport, const std::string& line) {
    const std::string name = line.substr(0, line.find(' '));
    const std::string rest = name.size() == line.size() ? "" : line.substr(name.size() + 1);
    transport.received_at = steady_now();
    if (name == DialEvent::kUp) {
      transport.is_up = true;
      job_was_up_ = true;
    } else if (name == DialEvent::kEnded) {
      transport.has_ended = true;
      next_dial_ = steady_now();
    } else if (name == DialEvent::kSignal) {
      transport.signals.push_back(std::atoi(rest.c_str()));
    } else if (name == DialEvent::kWhy) {
      why_ = rest;
    }
  }

  // srun forwards the line, so that the user at the launcher sees the cause.
  void report_failure_when_due() {
    if (job_was_up_ || has_reported_failure_ || why_.empty()) return;
    if (steady_now() - began_ < milliseconds(kDialReportFailureMs)) return;
    has_reported_failure_ = true;
    complain(node_, why_ + "; still trying");
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signal_fd_, &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      if (std::find(kForwardedSignals.begin(), kForwardedSignals.end(), number) ==
          kForwardedSignals.end())
        continue;
      signals_.push_back({number, steady_now() + milliseconds(kSignalSettleMs)});
    }
  }

  void forward_signals_when_due() {
    while (!signals_.empty() && steady_now() >= signals_.front().due) {
      const int number = signals_.front().number;
      signals_.erase(signals_.begin());
      DialGreeting greeting;
      greeting.kind = DialGreeting::Kind::kSignal;
      greeting.host = host_;
      greeting.signal = number;
      for (Transport& transport : transports_)
        greeting.whole_tree |= std::erase(transport.signals, number) > 0;
      const Descriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
      fork_attempt({&order_, greeting, nowhere.get()});
    }
  }

  int timeout_ms() const {
    // 250 ms is short compared with all timeouts here.
    auto left = milliseconds(250);
    const Clock::time_point now = steady_now();
    const auto until = [&](Clock::time_point due) {
      return std::max(std::chrono::ceil<milliseconds>(due - now), milliseconds(0));
    };
    if (!is_served()) left = std::min(left, until(next_dial_));
    if (!signals_.empty()) left = std::min(left, until(signals_.front().due));
    return static_cast<int>(left.count());
  }

  void wait() {
    std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0},
                               {input_ended_ ? -1 : STDIN_FILENO, POLLIN, 0}};
    for (const Transport& transport : transports_)
      fds.push_back({transport.event_fd.get(), POLLIN, 0});
    if (poll(fds.data(), fds.size(), timeout_ms()) <= 0) return;
    if (fds[0].revents != 0) take_signals();
    if (fds[1].revents != 0) drain_input();
    for (Transport& transport : transports_) read_events(transport);
  }

  // srun sends input for other hosts of the step to all hosts: one that does not read it would
  // block the others.
  void drain_input() {
    std::array<char, 65536> buffer;
    const ssize_t count = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) input_ended_ = true;
  }

  const DialOrder order_;
  const std::uint32_t host_;
  const std::string node_;
  const Clock::time_point began_ = steady_now();
  int signal_fd_ = -1;
  bool input_ended_ = false;
  bool job_was_up_ = false;
  int last_exit_ = kDialOver;
  bool has_reported_failure_ = false;
  std::string why_;
  std::vector<Transport> transports_;
  std::vector<Signal> signals_;
  Clock::time_point dialled_at_{};
  Clock::time_point next_dial_{};
};

}  // namespace

int run_dial() {
  signal(SIGPIPE, SIG_IGN);
  // Orphans of the job must remain below the step's task, where the scheduler looks for them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string node = node_name();
  Result<DialOrder> order = read_order(STDIN_FILENO);
  if (!order.ok()) return complain(node, order.error().message);
  if (order->self) {
    const std::uint32_t self = *order->self;
    return end_with_our_parent() ? Dialer(std::move(order).value(), self, node).run() : kDialFailed;
  }
  const auto host = std::find(order->hosts.begin(), order->hosts.end(), node);
  if (host == order->hosts.end())
    return complain(node, "this node is not one of the job's " +
                              std::to_string(order->hosts.size()) + " hosts");
  const auto index = static_cast<std::uint32_t>(host - order->hosts.begin());
  return Dialer(std::move(order).value(), index, node).run();
}

}  // namespace ivy
