// SPDX-License-Identifier: Apache-2.0
// The sections: commands; the tools that carry them out; the faults; the loop.
#include "agent/node/roles/drill.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"
#include "proto/wire/drill.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace drill {

std::vector<Words> cut_rules(const std::string& program, const std::string& action,
                             const std::string& until, const std::string& mark) {
  std::vector<Words> rules;
  for (const bool is_input : {true, false}) {
    // -w: waits for another program that changes rules.
    Words rule{program, "-w", "5", action, is_input ? "INPUT" : "OUTPUT"};
    // In front of all other rules.
    if (action == "-I") rule.emplace_back("1");
    for (const char* word : {"!", is_input ? "-i" : "-o", "lo", "-m", "comment", "--comment"})
      rule.emplace_back(word);
    rule.push_back(mark);
    if (!until.empty())
      for (const std::string& word : Words{"-m", "time", "--datestop", until}) rule.push_back(word);
    rule.emplace_back("-j");
    rule.emplace_back("DROP");
    rules.push_back(std::move(rule));
  }
  return rules;
}

Words slow_command(const std::string& program, const std::string& interface,
                   const std::string& rate, std::uint32_t delay_ms) {
  Words command{program, "qdisc", "add", "dev", interface, "root"};
  if (delay_ms > 0) {
    for (const std::string& word : Words{"netem", "delay", std::to_string(delay_ms) + "ms"})
      command.push_back(word);
    if (!rate.empty()) command.insert(command.end(), {"rate", rate});
    return command;
  }
  // Unlike netem, tbf exists in every kernel. It needs a bucket that holds the bytes of one tick.
  const std::size_t digits = rate.find_first_not_of("0123456789");
  const std::string unit = digits == std::string::npos ? "" : rate.substr(digits);
  const std::uint64_t factor = unit == "gbit" ? 1'000'000'000 : unit == "mbit" ? 1'000'000 : 1'000;
  const std::uint64_t bits = to_number<std::uint64_t>(rate.substr(0, digits)).value_or(1) * factor;
  const std::uint64_t bucket = std::max<std::uint64_t>(bits / 8 / 100, 32u << 10);
  for (const std::string& word :
       Words{"tbf", "rate", rate, "burst", std::to_string(bucket), "latency", "400ms"})
    command.push_back(word);
  return command;
}

}  // namespace drill

namespace {

using drill::Words;

constexpr std::int64_t kMillisecondNs = 1'000'000;
// The tools change settings of the kernel, which takes milliseconds.
constexpr std::int64_t kToolLimitNs = 10'000 * kMillisecondNs;
// A stop of the job may kill a tool that runs at this moment.
constexpr int kMaxTries = 20;
// The time is checked this often, in case a signal arrives just before poll().
constexpr int kPollMs = 200;
// Faults at a time; the launcher injects them seconds apart.
constexpr std::size_t kMaxActive = 64;
// The rules expire this long after they should have been removed.
constexpr std::int64_t kExpirySlackS = 3;

volatile sig_atomic_t is_told_to_end = 0;
void take_signal(int) { is_told_to_end = 1; }

// ---- Tools --------------------------------------------------------------------------------------

std::string tool_path(const std::string& name) {
  for (const char* directory : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"})
    if (const std::string path = directory + name; access(path.c_str(), X_OK) == 0) return path;
  return "";
}

// Runs a tool once. Returns its wait status, or -1; `said` gets its standard error.
int run_once(const Words& words, std::string& said) {
  DescriptorPair pipe = make_pipe();
  if (!pipe) return -1;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO})
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, pipe.second.get(), STDERR_FILENO);
  std::vector<char*> arguments = exec_array(words);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, words[0].c_str(), &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    errno = error;
    return -1;
  }
  pipe.second.reset();
  const std::int64_t limit_ns = monotonic_ns() + kToolLimitNs;
  for (bool is_open = true; is_open;) {
    const std::int64_t left_ns = limit_ns - monotonic_ns();
    pollfd waited{pipe.first.get(), POLLIN, 0};
    const int ready = left_ns <= 0 ? 0 : poll(&waited, 1, static_cast<int>(left_ns / 1'000'000));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      kill(pid, SIGKILL);
      said = "it took longer than 10 s";
      break;
    }
    char bytes[512];
    const ssize_t count = read(pipe.first.get(), bytes, sizeof bytes);
    is_open = count > 0 || (count < 0 && errno == EINTR);
    if (count > 0 && said.size() < 2 * sizeof bytes)
      said.append(bytes, static_cast<std::size_t>(count));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Runs a tool. Returns why it failed; empty: it did not.
std::string run_tool(const Words& words) {
  std::string said;
  int status = -1;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    said.clear();
    status = run_once(words, said);
    if (status == -1) return words[0] + ": " + strerror(errno);
    if (!WIFSIGNALED(status) || !said.empty()) break;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  std::replace(said.begin(), said.end(), '\n', ' ');
  while (said.ends_with(' ')) said.pop_back();
  return words[0] + ": " + (said.empty() ? "failed" : said);
}

std::string run_tools(const std::vector<Words>& commands) {
  for (const Words& command : commands)
    if (std::string why = run_tool(command); !why.empty()) return why;
  return "";
}

// Runs the commands in a network of their own, which shows whether the kernel and this user can do
// it without touching the host's. Returns why not.
std::string try_elsewhere(const std::vector<Words>& commands) {
  for (int tries = 0; tries < kMaxTries; ++tries) {
    DescriptorPair pipe = make_pipe();
    const pid_t child = pipe ? fork() : -1;
    if (child < 0) return strerror(errno);
    if (child == 0) {
      std::string why;
      if (unshare(CLONE_NEWNET) != 0)
        why = std::string("it needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN) there: ") + strerror(errno);
      else
        why = run_tools(commands);
      write_all(pipe.second.get(), "\n" + why);
      _exit(0);
    }
    pipe.second.reset();
    const std::string answer = read_from(pipe.first.get(), 4096).value_or("");
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (!answer.empty()) return answer.substr(1);
  }
  return "the check was killed";
}

// ---- The faults ---------------------------------------------------------------------------------

// A fault that has begun.
struct Active {
  std::uint32_t number = 0;
  std::int64_t until_ns = 0;
  std::vector<Words> undo;
  Descriptor file;  // A full disk: closing it frees the space.
};

// How this host's network is cut: the firewalls that work here.
struct CutTools {
  std::vector<std::string> programs;
  bool expires = false;
};

std::string date_after(std::int64_t seconds) {
  const std::time_t at = static_cast<std::time_t>(wall_ms() / 1000 + seconds);
  std::tm parts{};
  gmtime_r(&at, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return text;
}

Result<CutTools> find_cut_tools() {
  CutTools tools;
  std::string first_why = "iptables is not installed there";
  for (const char* name : {"iptables", "ip6tables"}) {
    const std::string path = tool_path(name);
    if (path.empty()) continue;
    const bool is_first = tools.programs.empty();
    std::string why = try_elsewhere(drill::cut_rules(path, "-I", date_after(60), "ivyrun"));
    const bool expires = why.empty();
    if (!expires) why = try_elsewhere(drill::cut_rules(path, "-I", "", "ivyrun"));
    if (!why.empty() && is_first) first_why = why;
    if (!why.empty()) continue;
    tools.expires = is_first ? expires : tools.expires && expires;
    tools.programs.push_back(path);
  }
  if (tools.programs.empty()) return Error{Code::kFailedPrecondition, first_why};
  return tools;
}

std::string begin_cut(const DrillOrder& order, Active& active) {
  const Result<CutTools> tools = find_cut_tools();
  if (!tools.ok()) return tools.error().message;
  const std::int64_t lasts_s = order.lasts_ms() / 1000 + kExpirySlackS;
  const std::string until = tools->expires ? date_after(lasts_s) : "";
  const std::string mark =
      "ivyrun-drill-" + std::to_string(getpid()) + "-" + std::to_string(order.number());
  for (const std::string& program : tools->programs) {
    const std::vector<Words> undo = drill::cut_rules(program, "-D", until, mark);
    const std::vector<Words> rules = drill::cut_rules(program, "-I", until, mark);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (std::string why = run_tool(rules[i]); !why.empty()) return why;
      active.undo.push_back(undo[i]);
    }
  }
  return "";
}

// Returns the name of the interface that has this address, or an empty text.
std::string interface_with(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const void* bytes = nullptr;
    if (one->ifa_addr->sa_family == AF_INET)
      bytes = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (one->ifa_addr->sa_family == AF_INET6)
      bytes = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    if (bytes != nullptr &&
        inet_ntop(one->ifa_addr->sa_family, bytes, text, sizeof text) != nullptr && text == address)
      return one->ifa_name;
  }
  return "";
}

std::string check_slow(const DrillOrder& order) {
  const std::string tc = tool_path("tc");
  if (tc.empty()) return "tc (iproute2) is not installed there";
  return try_elsewhere({drill::slow_command(tc, "lo", order.rate(), order.delay_ms())});
}

std::string begin_slow(const DrillOrder& order, Active& active) {
  const std::string tc = tool_path("tc");
  if (tc.empty()) return "tc (iproute2) is not installed there";
  std::string interface = order.interface();
  if (interface.empty() || interface == "lo") interface = interface_with(order.address());
  if (interface.empty() || interface == "lo") return "its interface to the other hosts is unknown";
  const std::string why =
      run_tool(drill::slow_command(tc, interface, order.rate(), order.delay_ms()));
  if (why.empty()) active.undo.push_back({tc, "qdisc", "del", "dev", interface, "root"});
  return why;
}

Result<std::uint64_t> free_bytes(const DrillOrder& order) {
  struct statvfs status {};
  if (statvfs(order.path().c_str(), &status) != 0)
    return Error{Code::kNotFound, order.path() + ": " + strerror(errno)};
  const std::uint64_t free = (geteuid() == 0 ? status.f_bfree : status.f_bavail) * status.f_frsize;
  if (free > order.max_bytes())
    return Error{Code::kFailedPrecondition,
                 order.path() + " has " + size_text(free) +
                     " free, more than size=" + size_text(order.max_bytes())};
  return free;
}

// Fills the file system with one file that has no name, so that the kernel frees it with this
// process.
std::string begin_full_disk(const DrillOrder& order, Active& active) {
  const Result<std::uint64_t> free = free_bytes(order);
  if (!free.ok()) return free.error().message;
  Descriptor file(open(order.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) {
    const std::string name = order.path() + "/.ivyrun-drill-" + std::to_string(getpid());
    file.reset(open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return order.path() + ": " + strerror(errno);
    unlink(name.c_str());
  }
  std::uint64_t taken = 0;
  // The file system needs some of its free blocks for the file's own description.
  for (std::uint64_t piece = *free; piece >= 4096 && taken < order.max_bytes();) {
    piece = std::min(piece, order.max_bytes() - taken);
    if (fallocate(file.get(), 0, static_cast<off_t>(taken), static_cast<off_t>(piece)) == 0)
      taken += piece;
    else if (errno != ENOSPC && errno != EINTR)
      break;
    else
      piece /= 2;
  }
  // The last bytes, or all of them if the file system cannot reserve space.
  const std::string zeros(64u << 10, '\0');
  while (taken < order.max_bytes()) {
    const std::uint64_t piece = std::min<std::uint64_t>(zeros.size(), order.max_bytes() - taken);
    const ssize_t count = pwrite(file.get(), zeros.data(), static_cast<std::size_t>(piece),
                                 static_cast<off_t>(taken));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    taken += static_cast<std::uint64_t>(count);
  }
  active.file = std::move(file);
  return "";
}

// ---- The loop -----------------------------------------------------------------------------------

class DrillTask {
 public:
  // Returns the exit code.
  int run();

 private:
  // Returns false at the end of the input, or if it is invalid.
  bool read_orders();
  void take(const DrillOrder& order);
  std::string check(const DrillOrder& order) const;
  std::string begin(const DrillOrder& order, Active& active) const;
  void undo_due(std::int64_t now_ns);
  // Returns why it could not be undone; empty: it was.
  std::string undo(Active& active) const;
  void end(Active& active);
  void reply(std::uint32_t number, DrillStep step, const std::string& why = "");
  int poll_ms() const;

  stage::MessageSplitter orders_;
  std::vector<Active> active_;
};

int DrillTask::run() {
  bool is_open = true;
  while (is_open && is_told_to_end == 0) {
    pollfd waited{STDIN_FILENO, POLLIN, 0};
    if (poll(&waited, 1, poll_ms()) > 0) is_open = read_orders();
    undo_due(monotonic_ns());
  }
  for (Active& active : active_) end(active);
  return 0;
}

int DrillTask::poll_ms() const {
  std::int64_t left_ms = kPollMs;
  for (const Active& active : active_)
    left_ms = std::min(left_ms, (active.until_ns - monotonic_ns()) / kMillisecondNs + 1);
  return static_cast<int>(std::max<std::int64_t>(left_ms, 0));
}

bool DrillTask::read_orders() {
  char bytes[4096];
  const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  orders_.feed(std::string_view(bytes, static_cast<std::size_t>(count)));
  for (;;) {
    const Result<std::optional<std::string>> message = orders_.next();
    if (!message.ok()) return false;
    if (!*message) return true;
    DrillOrder order;
    if (!order.ParseFromString(**message)) return false;
    take(order);
  }
}

void DrillTask::take(const DrillOrder& order) {
  if (order.is_check()) {
    const std::string why = check(order);
    return reply(order.number(), why.empty() ? DRILL_BEGUN : DRILL_FAILED, why);
  }
  if (order.fault() == HOST_FAULT_KILL_SUPERVISOR) {
    kill(getppid(), SIGKILL);
    return;
  }
  if (active_.size() >= kMaxActive)
    return reply(order.number(), DRILL_FAILED, "too many faults at a time");
  Active active;
  active.number = order.number();
  active.until_ns = monotonic_ns() + order.lasts_ms() * kMillisecondNs;
  if (const std::string why = begin(order, active); !why.empty()) {
    const std::string not_undone = undo(active);
    return reply(order.number(), DRILL_FAILED, why + (not_undone.empty() ? "" : "; " + not_undone));
  }
  active_.push_back(std::move(active));
  reply(order.number(), DRILL_BEGUN);
}

std::string DrillTask::check(const DrillOrder& order) const {
  switch (order.fault()) {
    case HOST_FAULT_CUT: {
      const Result<CutTools> tools = find_cut_tools();
      return tools.ok() ? "" : tools.error().message;
    }
    case HOST_FAULT_SLOW:
      return check_slow(order);
    case HOST_FAULT_FULL_DISK: {
      const Result<std::uint64_t> free = free_bytes(order);
      return free.ok() ? "" : free.error().message;
    }
    default:
      return "";
  }
}

std::string DrillTask::begin(const DrillOrder& order, Active& active) const {
  switch (order.fault()) {
    case HOST_FAULT_CUT:
      return begin_cut(order, active);
    case HOST_FAULT_SLOW:
      return begin_slow(order, active);
    case HOST_FAULT_FULL_DISK:
      return begin_full_disk(order, active);
    default:
      return "this fault is unknown here";
  }
}

void DrillTask::undo_due(std::int64_t now_ns) {
  for (Active& active : active_)
    if (now_ns >= active.until_ns) end(active);
  std::erase_if(active_, [now_ns](const Active& active) { return now_ns >= active.until_ns; });
}

std::string DrillTask::undo(Active& active) const {
  std::string why;
  // In reverse, as it was built up.
  for (auto command = active.undo.rbegin(); command != active.undo.rend(); ++command)
    if (std::string failed = run_tool(*command); !failed.empty()) why = failed;
  active.file.reset();
  return why.empty() ? "" : "it could not be undone: " + why;
}

void DrillTask::end(Active& active) {
  const std::string why = undo(active);
  reply(active.number, why.empty() ? DRILL_ENDED : DRILL_FAILED, why);
}

void DrillTask::reply(std::uint32_t number, DrillStep step, const std::string& why) {
  DrillReply reply;
  reply.set_number(number);
  reply.set_step(step);
  reply.set_why(why);
  // Fails only if the supervisor has exited.
  write_all(STDOUT_FILENO, stage::framed(reply.SerializeAsString()));
}

}  // namespace

int run_drill() {
  prctl(PR_SET_NAME, kDrillTaskName);
  struct sigaction action {};
  action.sa_handler = take_signal;
  sigaction(SIGTERM, &action, nullptr);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_IGN);
  // Instead of the SIGKILL that start_server() has chosen; if the supervisor is dead already, the
  // input has ended.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  return DrillTask().run();
}

}  // namespace ivy
