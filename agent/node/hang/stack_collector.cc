// SPDX-License-Identifier: Apache-2.0
// From the inside out: HookAnswer queries the Python hook in one worker; WorkerInspection
// collects everything about one worker, trying one tool after the other; Collection serves one
// request of the launcher, with a WorkerInspection per worker; and StackCollector has the open
// collections and advances them at each tick.
#include "agent/node/hang/stack_collector.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "agent/node/hang/flight_client.h"
#include "agent/node/hang/process_view.h"
#include "agent/node/hang/stack_methods.h"
#include "agent/node/hang/tool_run.h"
#include "agent/node/spawn/spawn.h"
#include "agent/node/workers/lease.h"
#include "agent/node/workers/python_hook.h"
#include "proto/contract/env.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/wire/ras.h"

namespace ivy {
namespace {

constexpr std::chrono::milliseconds kTick{20};
// Limit for the hook: an interpreter that handles the signal answers immediately, one that blocks
// it never does.
constexpr std::uint64_t kHookTimeoutNs = 1'500'000'000;
constexpr std::uint64_t kAnswerSettledNs = 60'000'000;
// How long to wait for a moment at which no other thread of the worker runs.
constexpr std::uint64_t kSleepTimeoutNs = 500'000'000;
constexpr const char* kOthersRun =
    "only the main thread is shown: other threads kept running, and reading the stack of a running "
    "thread can crash the process";
// gdb takes several seconds to read the symbols of a process that has loaded torch.
constexpr std::uint64_t kToolTimeoutNs = 15'000'000'000;
constexpr std::uint32_t kDefaultStackTimeoutMs = 5'000;
constexpr std::uint32_t kMaxStackTimeoutMs = 60'000;
constexpr std::size_t kPieceBytes = 64u << 10;
// With two unacknowledged pieces on a link of 256 kbit/s, a heartbeat waits 4 s behind them.
constexpr std::uint64_t kMaxWaitingBytes = 2 * kPieceBytes;

std::string value_of(const Environment& environment, const char* name) {
  const std::string* value = find_variable(environment, name);
  return value == nullptr ? "" : *value;
}

bool catches(const ProcessView& view, int signal) {
  return (view.caught_signals >> (signal - 1) & 1) != 0;
}

// Returns the environment of a debugger, without variables that would make it use another Python,
// other libraries or downloads.
Environment tool_environment() {
  Environment environment = environment_of(environ);
  for (const char* name :
       {"PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "DEBUGINFOD_URLS"})
    unset_variable(environment, name);
  return environment;
}

// The debuggers on this host; a path is empty if the tool is not installed.
struct StackTools {
  std::string py_spy;
  std::string gdb;
};

// Searches the workers' PATH. Call it on a pool thread, since those file systems may not respond.
StackTools find_tools(const Environment& worker) {
  std::string path = value_of(worker, "PATH");
  const std::string environment = value_of(worker, "VIRTUAL_ENV");
  if (!environment.empty()) path = environment + "/bin:" + path;
  const auto find = [&](const char* name) {
    const Result<std::string> found =
        find_executable(name, path + ":" + kDefaultSearchPath, "/", nullptr);
    return found.ok() && found->starts_with('/') ? *found : "";
  };
  return {find("py-spy"), find("gdb")};
}

std::vector<std::string> tool_arguments(StackMethod method, const std::string& program, pid_t pid,
                                        bool native) {
  std::vector<std::string> words = {program};
  if (method == StackMethod::kPySpy) {
    words.insert(words.end(), {"dump", "--pid", std::to_string(pid)});
    if (native) words.emplace_back("--native");
    return words;
  }
  words.insert(words.end(), {"-nx", "-batch", "-iex", "set auto-load off", "-iex",
                             "set debuginfod enabled off", "-ex", "set pagination off", "-p",
                             std::to_string(pid), "-ex", "thread apply all bt 64"});
  return words;
}

// Requests stacks from the hook in a Python worker by signals, and reads the answers from the file
// to which faulthandler appends them. The main thread is requested first, because in a process with
// hundreds of threads faulthandler omits the oldest. The others are requested only while they
// sleep: faulthandler reads their frames without the GIL, and a thread that runs Python code
// meanwhile frees frames that are being read, which ends the process with SIGSEGV.
class HookAnswer {
 public:
  // `light`: only the main thread.
  HookAnswer(const ProcessStat& process, std::string file, bool light, std::uint64_t now_ns)
      : process_(process), file_(std::move(file)), is_light_(light) {
    send_signal(kStackSignal + 1, now_ns);
  }

  // Returns true when nothing more will arrive.
  bool advance(std::uint64_t now_ns) {
    if (waits_for_sleep_) return request_others(now_ns);
    struct stat status {};
    const off_t size = lstat(file_.c_str(), &status) == 0 ? status.st_size : offset_;
    if (size != size_) changed_at_ns_ = now_ns;
    size_ = size;
    const bool has_answer = size_ > offset_ && now_ns - changed_at_ns_ >= kAnswerSettledNs;
    if (!has_answer) return now_ns - signalled_at_ns_ >= kHookTimeoutNs;
    read_answer();
    const bool is_all = is_light_ || signal_ == kStackSignal;
    waits_for_sleep_ = !is_all;
    signalled_at_ns_ = now_ns;
    return is_all;
  }

  const std::string& text() const { return text_; }
  bool is_cut() const { return is_cut_; }
  // Returns true if other threads were not requested, because they never slept.
  bool others_kept_running() const { return waits_for_sleep_; }

 private:
  // Returns true when the wait for a moment of sleep is given up.
  bool request_others(std::uint64_t now_ns) {
    const std::optional<std::uint64_t> before =
        std::exchange(switches_, switches_of_sleeping_threads(process_.pid));
    if (!before || before != switches_) return now_ns - signalled_at_ns_ >= kSleepTimeoutNs;
    waits_for_sleep_ = false;
    send_signal(kStackSignal, now_ns);
    return false;
  }

  void send_signal(int signal, std::uint64_t now_ns) {
    signal_ = signal;
    signalled_at_ns_ = now_ns;
    changed_at_ns_ = now_ns;
    struct stat status {};
    offset_ = stat(file_.c_str(), &status) == 0 ? status.st_size : 0;
    size_ = offset_;
    signal_process(process_.pid, process_.start_time, signal);
  }

  void read_answer() {
    const Descriptor fd(open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd) return;
    const std::size_t remaining = ToolRun::kMaxOutputBytes - text_.size();
    const auto available = static_cast<std::size_t>(size_ - offset_);
    std::string text(std::min(remaining, available), '\0');
    const ssize_t count = pread(fd.get(), text.data(), text.size(), offset_);
    if (count > 0) text_.append(text, 0, static_cast<std::size_t>(count));
    is_cut_ |= available > remaining;
  }

  const ProcessStat process_;
  const std::string file_;
  const bool is_light_;
  int signal_ = 0;
  off_t offset_ = 0;  // Start of the expected answer in the file.
  off_t size_ = 0;
  std::uint64_t signalled_at_ns_ = 0;
  std::uint64_t changed_at_ns_ = 0;
  bool waits_for_sleep_ = false;
  std::optional<std::uint64_t> switches_;  // Of the other threads, at the previous tick.
  std::string text_;
  bool is_cut_ = false;
};

// Collects one worker's evidence, trying the tools for its stack one after the other.
class WorkerInspection {
 public:
  struct Request {
    bool native = false;
    bool light = false;
    bool records_only = false;
    std::uint64_t deadline_ns = 0;
    std::size_t flight_bytes = 0;  // For one worker; 0 if its flight record is not requested.
  };

  WorkerInspection(const StackCollector::Subject& subject, const StackCollector::Group& group,
                   const Request& request)
      : group_(group), request_(request), subject_(subject) {
    evidence_.set_rank(subject.rank);
  }

  void begin(const std::vector<ProcessStat>& all, std::uint64_t now_ns) {
    pid_ = subject_.is_running ? process_below_shells(subject_.pid, all) : subject_.pid;
    evidence_.set_pid(pid_);
    evidence_.set_nccl_warning(last_nccl_warning(group_.environment, pid_));
    if (!subject_.is_running || !read_process_view(pid_, view_)) return end("it has exited");
    describe();
    facts_.state = view_.stat.state;
    facts_.is_python = runs_python(pid_);
    facts_.has_hook = catches(view_, kStackSignal) && catches(view_, kStackSignal + 1) &&
                      holds_open(pid_, hook_file());
    facts_.native = request_.native;
    facts_.light = request_.light;
    if (request_.flight_bytes > 0) query_flight_server();
    const std::vector<StackMethod> methods = stack_methods(facts_);
    if (request_.records_only) return end("not requested");
    methods_.assign(methods.begin(), methods.end());
    next_method(now_ns);
  }

  bool wants_tool() const { return waits_for_tool_; }
  bool has_tool() const { return tool_ != nullptr; }

  // Returns the debugger's pid, or -1 if it could not be started; then the next tool is tried.
  pid_t start_tool(const StackTools& tools, std::uint64_t now_ns) {
    waits_for_tool_ = false;
    const StackMethod method = methods_.front();
    const std::string& program = method == StackMethod::kPySpy ? tools.py_spy : tools.gdb;
    if (program.empty()) {
      methods_.pop_front();
      next_method(now_ns);
      return -1;
    }
    Result<std::unique_ptr<ToolRun>> run =
        ToolRun::start(tool_arguments(method, program, pid_, request_.native), tool_environment(),
                       std::min(now_ns + kToolTimeoutNs, request_.deadline_ns));
    if (!run.ok()) {
      error_text_ = run.error().message;
      methods_.pop_front();
      next_method(now_ns);
      return -1;
    }
    tool_ = std::move(*run);
    return tool_->pid();
  }

  // Returns true when all evidence has been collected.
  bool advance(std::uint64_t now_ns) {
    if (tool_ && tool_->advance(now_ns)) tool_ended(now_ns);
    if (hook_ && hook_->advance(now_ns)) hook_ended(now_ns);
    if (flight_client_ && !flight_is_over_) flight_is_over_ = flight_client_->advance(now_ns);
    return is_over_ && (!flight_client_ || flight_is_over_);
  }

  RankEvidence take(std::uint64_t& flight_bytes_left) {
    if (!is_over_) {
      tool_.reset();
      // At the deadline, an incomplete stack is better than none.
      if (hook_) take_hook_answer();
      end("no answer in time");
    }
    if (flight_client_) take_flight(flight_bytes_left);
    return std::move(evidence_);
  }

 private:
  // torch's worker server answers within milliseconds, but never in a stopped process.
  void query_flight_server() {
    const std::string socket = flight_socket(hook_file());
    if (!was_stopped() && access(socket.c_str(), F_OK) == 0)
      flight_client_.emplace(socket, request_.flight_bytes);
  }

  void take_flight(std::uint64_t& flight_bytes_left) {
    std::string note;
    for (FlightClient::Record& record : flight_client_->take(note)) {
      if (record.json.size() > flight_bytes_left) continue;
      flight_bytes_left -= record.json.size();
      FlightJson& added = *evidence_.add_flight_json();
      added.set_backend(std::move(record.backend));
      added.set_complete(record.is_complete);
      added.set_json(std::move(record.json));
    }
    evidence_.set_flight_note(std::move(note));
  }

  bool was_stopped() const { return facts_.state == 'T' || facts_.state == 't'; }

  void describe() {
    evidence_.set_name(view_.stat.name);
    evidence_.set_state(std::string(1, view_.stat.state));
    evidence_.set_waiting_in(view_.waiting_in);
    evidence_.set_system_call(view_.system_call);
    evidence_.set_kernel_stack(view_.kernel_stack);
    evidence_.set_threads(view_.threads);
    evidence_.set_threads_in(view_.threads_in);
    evidence_.set_cpu_ticks(view_.cpu_ticks);
  }

  void next_method(std::uint64_t now_ns) {
    if (methods_.empty()) return end(error_text_.empty() ? why_no_stack(facts_) : error_text_);
    if (methods_.front() != StackMethod::kHook) {
      waits_for_tool_ = true;
      return;
    }
    hook_.emplace(view_.stat, hook_file(), request_.light, now_ns);
  }

  std::string hook_file() const {
    return stack_file(group_.directory, group_.generation, subject_.rank) + "." +
           std::to_string(pid_);
  }

  void hook_ended(std::uint64_t now_ns) {
    const bool has_answer = take_hook_answer();
    const bool is_partial = hook_->others_kept_running();
    hook_.reset();
    if (has_answer) return end(is_partial ? kOthersRun : "");
    error_text_ = "it did not respond to the signal that requests its Python stack";
    methods_.pop_front();
    next_method(now_ns);
  }

  // Returns false if nothing has been received.
  bool take_hook_answer() {
    if (hook_->text().empty()) return false;
    evidence_.set_tool("faulthandler");
    evidence_.set_stack(hook_->text());
    evidence_.set_stack_cut(hook_->is_cut());
    return true;
  }

  void tool_ended(std::uint64_t now_ns) {
    const std::unique_ptr<ToolRun> tool = std::move(tool_);
    const StackMethod method = methods_.front();
    // A debugger that was killed may leave the worker stopped.
    if (tool->was_late() && !was_stopped()) signal_process(pid_, view_.stat.start_time, SIGCONT);
    if (has_stack(method, tool->output())) {
      evidence_.set_tool(method == StackMethod::kPySpy ? "py-spy" : "gdb");
      evidence_.set_stack(tool->output());
      evidence_.set_stack_cut(tool->output_was_cut() || tool->was_late());
      return end("");
    }
    const std::string name = method == StackMethod::kPySpy ? "py-spy" : "gdb";
    const std::string error_text = error_text_of(tool->output());
    error_text_ = tool->was_late()
                      ? name + " did not answer in time"
                      : name + (error_text.empty() ? " found no stack" : ": " + error_text);
    methods_.pop_front();
    next_method(now_ns);
  }

  void end(const std::string& note) {
    is_over_ = true;
    ProcessStat now;
    const bool is_running = pid_ > 0 && read_process_stat(pid_, now) && !has_ended(now) &&
                            now.start_time == view_.stat.start_time;
    if (!is_running && subject_.is_running && !evidence_.state().empty()) {
      evidence_.clear_state();
      evidence_.set_note("it exited while its stack was read");
      return;
    }
    evidence_.set_note(note);
  }

  const StackCollector::Group& group_;
  const Request request_;
  const StackCollector::Subject subject_;
  RankEvidence evidence_;
  ProcessView view_;
  StackFacts facts_;
  pid_t pid_ = -1;
  std::deque<StackMethod> methods_;  // Not tried yet, or in progress; the current one first.
  bool waits_for_tool_ = false;
  std::unique_ptr<ToolRun> tool_;
  std::string error_text_;          // Why the last tool failed.
  std::optional<HookAnswer> hook_;  // Present while its answer is expected.
  std::optional<FlightClient> flight_client_;
  bool flight_is_over_ = false;
  bool is_over_ = false;
};

}  // namespace

class StackCollector::Collection {
 public:
  Collection(const CollectStacks& request, const std::vector<Subject>& subjects, Group group,
             BlockingPool& blocking)
      : number_(request.number()),
        group_(std::move(group)),
        wants_records_(request.max_flight_bytes() > 0),
        flight_bytes_left_(request.max_flight_bytes()) {
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint32_t requested_ms =
        request.patience_ms() == 0 ? kDefaultStackTimeoutMs : request.patience_ms();
    deadline_ns_ = now_ns + std::min(requested_ms, kMaxStackTimeoutMs) * kNanosPerMilli;
    blocking.run(
        "the file systems of PATH, to find a debugger",
        std::chrono::nanoseconds(deadline_ns_ - now_ns),
        [environment = group_.environment]() -> Result<StackTools> {
          return find_tools(environment);
        },
        [tools = tools_](const Result<StackTools>& found) {
          *tools = found.ok() ? *found : StackTools{};
        });
    const std::string* health = find_variable(group_.environment, "NCCL_RAS_ADDR");
    if (request.nccl_health() && health != nullptr) {
      const std::chrono::nanoseconds timeout(deadline_ns_ - now_ns);
      health_.emplace(*health, steady_now() + timeout);
    }
    const std::size_t share = flight_bytes_left_ / std::max<std::size_t>(subjects.size(), 1);
    const WorkerInspection::Request how{request.native(), request.light(), request.records_only(),
                                        deadline_ns_, share};
    const std::vector<ProcessStat> all = read_all_processes();
    for (const Subject& subject : subjects)
      inspections_.push_back(std::make_unique<WorkerInspection>(subject, group_, how));
    for (const std::unique_ptr<WorkerInspection>& inspection : inspections_)
      inspection->begin(all, now_ns);
  }

  // Returns true when the whole answer has been sent.
  bool advance(StackCollectorOwner& owner) {
    if (!is_collected_) advance_inspections(owner);
    if (!is_collected_) return false;
    while (sent_ < answer_.size() || !last_was_sent_) {
      if (owner.waiting_bytes() > kMaxWaitingBytes) return false;
      Event event;
      EvidencePart& part = *event.mutable_evidence_part();
      part.set_number(number_);
      part.set_bytes(answer_.substr(sent_, kPieceBytes));
      sent_ += part.bytes().size();
      last_was_sent_ = sent_ == answer_.size();
      part.set_last(last_was_sent_);
      owner.send_stacks(event);
    }
    return true;
  }

 private:
  void advance_inspections(StackCollectorOwner& owner) {
    const std::uint64_t now_ns = monotonic_ns();
    bool all_over = true;
    for (const std::unique_ptr<WorkerInspection>& inspection : inspections_)
      all_over &= inspection->advance(now_ns);
    if (health_) all_over &= health_->advance(steady_now());
    auto tools = static_cast<std::size_t>(
        std::count_if(inspections_.begin(), inspections_.end(),
                      [](const auto& inspection) { return inspection->has_tool(); }));
    for (const std::unique_ptr<WorkerInspection>& inspection : inspections_) {
      // A missing tool costs nothing, and the next candidate may be another tool.
      while (tools_->has_value() && inspection->wants_tool() && tools < kMaxTools) {
        const pid_t pid = inspection->start_tool(**tools_, now_ns);
        if (pid > 0) owner.debugger_started(pid);
        if (pid > 0) ++tools;
      }
    }
    if (!all_over && now_ns < deadline_ns_) return;
    is_collected_ = true;
    HostEvidence evidence;
    evidence.set_generation(group_.generation);
    for (const std::unique_ptr<WorkerInspection>& inspection : inspections_)
      *evidence.add_ranks() = inspection->take(flight_bytes_left_);
    if (wants_records_) owner.add_nccl_positions(evidence);
    if (health_) evidence.set_nccl_health(health_->answer());
    health_.reset();
    inspections_.clear();
    answer_ = evidence.SerializeAsString();
  }

  const std::uint32_t number_;
  const Group group_;
  const bool wants_records_;
  std::uint64_t flight_bytes_left_;
  std::uint64_t deadline_ns_ = 0;
  // Set when the search has finished. Shared with the search, which may outlive this object.
  const std::shared_ptr<std::optional<StackTools>> tools_ =
      std::make_shared<std::optional<StackTools>>();
  std::vector<std::unique_ptr<WorkerInspection>> inspections_;
  std::optional<RasQuestion> health_;
  bool is_collected_ = false;
  std::string answer_;
  std::size_t sent_ = 0;
  bool last_was_sent_ = false;
};

StackCollector::StackCollector(boost::asio::io_context& loop, BlockingPool& blocking,
                               StackCollectorOwner& owner)
    : blocking_(blocking), owner_(owner), timer_(loop) {}

StackCollector::~StackCollector() = default;

void StackCollector::collect(const CollectStacks& request,
                             const std::vector<std::unique_ptr<Worker>>& workers,
                             const Group& group) {
  std::vector<Subject> subjects;
  const auto& wanted = request.ranks();
  for (const std::unique_ptr<Worker>& worker : workers) {
    const bool is_requested =
        wanted.empty() || std::find(wanted.begin(), wanted.end(), worker->rank()) != wanted.end();
    if (is_requested)
      subjects.push_back({worker->rank(), worker->pid(), is_alive(worker->state())});
  }
  // Requests beyond the limit get an empty answer.
  if (collections_.size() >= kMaxRequests) subjects.clear();
  collections_.push_back(std::make_unique<Collection>(request, subjects, group, blocking_));
  tick();
}

void StackCollector::tick() {
  std::erase_if(collections_, [this](const std::unique_ptr<Collection>& collection) {
    return collection->advance(owner_);
  });
  if (!collections_.empty() && !is_ticking_) wait_tick();
}

void StackCollector::wait_tick() {
  is_ticking_ = true;
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    is_ticking_ = false;
    if (!error) tick();
  });
}

}  // namespace ivy
