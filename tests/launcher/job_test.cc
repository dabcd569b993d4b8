// SPDX-License-Identifier: Apache-2.0
// A whole Job on a terminal, with hosts that the test imitates (fake_host.h).
#include "launcher/job/job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "launcher/job/control/job_record.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/log.h"
#include "proto/wire/check.pb.h"
#include "proto/wire/stage_codec.h"
#include "tests/launcher/fake_host.h"

namespace {
// While true, mkdir() for these tests blocks, as on a file system that does not answer.
std::atomic<bool> folders_wait{false};
}  // namespace

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  while (folders_wait && std::strstr(path, "/ivy-job-") != nullptr) usleep(10'000);
  return mkdirat(AT_FDCWD, path, mode);
}

namespace ivy {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{60};

// Sequences that would set the clipboard or the title, or query the terminal, in every encoding of
// a control: ESC, C1 in UTF-8, raw C1. The last word shows that the text has arrived.
const std::string kEvil =
    "\x1b]52;c;QUFB\a \xc2\x9d"
    "0;t\xc2\x9c \x9d"
    "0;t\x9c \x1bPq\x1b\\ \x05\b\b\b\r\nEVIL"s;

// A host that obeys its commands; a test can change its answers.
struct Node {
  Node(boost::asio::io_context& loop, std::string given) : name(std::move(given)), host(loop) {
    facts.set_host_name(name);
    facts.set_user("me");
    facts.set_cores(4);
    facts.set_program_path("/bin/prog");
    facts.set_architecture("x86_64");
    facts.set_job_directory("/tmp/jobs/x");
    facts.set_reserved_port(1111);
    facts.set_store_port(2222);
    facts.set_coordinator_port(3333);
    host.has_heartbeat = true;
    host.on_command = [this](const Command& command) { obey(command); };
  }

  void obey(const Command& command) {
    if (on_command && on_command(command)) return;
    Event event;
    switch (command.kind_case()) {
      case Command::kHello:
        *event.mutable_hello_ok()->mutable_facts() = facts;
        return host.send(event);
      case Command::kCheckAddress:
        event.mutable_address_checked()->set_reachable(true);
        event.mutable_address_checked()->set_address(command.check_address().address());
        event.mutable_address_checked()->set_port(command.check_address().port());
        return host.send(event);
      case Command::kOpenStore:
        event.mutable_store_opened();
        return host.send(event);
      case Command::kStart:
        for (const WorkerSpec& worker : command.start().plan().workers()) start(worker.rank());
        if (on_started) on_started();
        return;
      case Command::kStop:
        return stop();
      case Command::kFinish:
        return host.cut();
      default:
        return;
    }
  }
  void start(std::uint32_t rank) {
    ranks.insert(rank);
    running.insert(rank);
    Event event;
    event.mutable_started()->set_rank(rank);
    event.mutable_started()->set_pid(1000 + static_cast<int>(rank));
    host.send(event);
  }
  void send_exited(std::uint32_t rank, int code, bool after_stop = false,
                   const std::string& error_file = "") {
    Event event;
    event.mutable_exited()->set_rank(rank);
    event.mutable_exited()->set_pid(1000 + static_cast<int>(rank));
    event.mutable_exited()->set_code(code);
    event.mutable_exited()->set_after_stop(after_stop);
    event.mutable_exited()->set_error_file(error_file);
    host.send(event);
  }
  void end(std::uint32_t rank, int code, const std::string& error_file = "") {
    running.erase(rank);
    send_exited(rank, code, is_stopping, error_file);
    for (const std::uint8_t stream : {std::uint8_t{1}, std::uint8_t{2}})
      host.print(rank, stream, "");
    if (running.empty()) report();
  }
  void report() {
    if (std::exchange(has_reported, true)) return;
    Event event;
    event.mutable_report()->set_clean(true);
    host.send(event);
  }
  void stop() {
    is_stopping = true;
    for (const std::uint32_t rank : std::set<std::uint32_t>(running)) end(rank, 143);
    report();
  }

  std::string name;
  FakeHost host;
  HostFacts facts;
  std::set<std::uint32_t> ranks;
  std::set<std::uint32_t> running;
  bool is_stopping = false;
  bool has_reported = false;
  // Returns true if it has handled the command.
  std::function<bool(const Command&)> on_command;
  std::function<void()> on_started;
};

class JobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("TERM", "xterm", 1);
    options_.command = {"/bin/prog"};
    options_.program_kind = ProgramKind::kExecutable;
    options_.transport = TransportChoice::kAgent;
    options_.working_directory = "/";
    options_.color = ColorChoice::kNever;
    options_.input.kind = InputChoice::Kind::kNone;
    options_.lease = milliseconds(30'000);
    options_.start_timeout = milliseconds(30'000);
  }
  void TearDown() override {
    folders_wait = false;
    give_back();
    log::set_verbosity(0);
    // A late task of the thread pool may still make a file there.
    const auto is_removed = [this] {
      std::error_code error;
      std::filesystem::remove_all(folder_, error);
      return !error;
    };
    if (!folder_.empty()) {
      EXPECT_TRUE(run_until(is_removed)) << folder_;
    }
  }

  void lend_terminal() {
    std::fflush(nullptr);
    int slave = -1;
    termios raw{};
    cfmakeraw(&raw);
    winsize size{};
    size.ws_col = 200;
    size.ws_row = 20;
    ASSERT_EQ(openpty(&master_, &slave, nullptr, &raw, &size), 0);
    for (int fd = 1; fd <= 2; ++fd) {
      saved_[fd - 1] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
      dup2(slave, fd);
    }
    close(slave);
    fcntl(master_, F_SETFL, O_NONBLOCK);
    // A dry run prints more at once than a terminal buffers, so another thread must read.
    if (options_.dry_run)
      reader_ = std::jthread([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          pollfd waiting{master_, POLLIN, 0};
          if (poll(&waiting, 1, 20) > 0) take_from_terminal();
        }
      });
  }
  void read_terminal() {
    if (!reader_.joinable()) take_from_terminal();
  }
  void stop_reader() {
    if (!reader_.joinable()) return;
    reader_.request_stop();
    reader_.join();
  }
  void take_from_terminal() {
    char buffer[65536];
    for (ssize_t count = 0; master_ >= 0 && (count = read(master_, buffer, sizeof buffer)) > 0;)
      text_.append(buffer, static_cast<std::size_t>(count));
  }
  // Restores 1 and 2 of the test program.
  void give_back() {
    job_.reset();
    std::fflush(nullptr);
    stop_reader();
    if (saved_[0] < 0) return;
    for (int fd = 1; fd <= 2; ++fd) {
      dup2(saved_[fd - 1], fd);
      close(saved_[fd - 1]);
      saved_[fd - 1] = -1;
    }
    read_terminal();
    close(master_);
    master_ = -1;
  }

  Node& node(const std::string& name) {
    return *nodes_.emplace(name, std::make_unique<Node>(loop_, name)).first->second;
  }
  // Returns the record that a dead launcher left: its job has a rank on each node, in the order of
  // names.
  ctl::JobRecord record_of_nodes() const {
    JobPlan plan;
    plan.world_size = static_cast<int>(nodes_.size());
    plan.master_address = "127.0.0.1";
    plan.program = "prog";
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      PlannedHost& planned = plan.hosts.emplace_back();
      planned.host_index = index;
      planned.transport = Transport::kAgent;
      planned.workers.push_back({.rank = static_cast<int>(index)});
    }
    ctl::JobRecord record;
    const JobIdentity identity = make_job_identity();
    record.set_job_id(identity.job_id);
    record.set_token(identity.token);
    record.set_started_unix_ms(wall_ms());
    std::vector<Host> hosts;
    for (const auto& [name, node] : nodes_) hosts.emplace_back().name = name;
    record_hosts(hosts, record);
    record_plan(plan, record);
    return record;
  }
  // Starts the job on all nodes in the order of their names, or takes it over.
  void start(std::optional<ctl::JobRecord> record = {}) {
    lend_terminal();
    log::set_verbosity(options_.verbose);
    JobRequest request;
    options_.hosts.clear();
    for (const auto& [name, node] : nodes_) options_.hosts.emplace_back().name = name;
    request.options = options_;
    request.identity = make_job_identity();
    if (record) request.identity = {record->job_id(), record->token()};
    job_id_ = request.identity.job_id;
    request.record = std::move(record);
    request.started_in = "/tmp";
    request.make_agent_link = [this](const std::shared_ptr<TransportContext>&, const Host& host,
                                     AgentRoute route, milliseconds, HostLinkEvents& owner) {
      auto link = std::make_unique<FakeLink>(nodes_.at(host.name)->host, owner);
      EXPECT_NE(route, AgentRoute::kOwnHost);
      return link;
    };
    job_ = std::make_unique<Job>(loop_, std::move(request));
    job_->start([this](int code, int) {
      if (on_over_) on_over_();
      exit_code_ = code;
    });
  }
  void make_folder() {
    char folder[] = "/tmp/ivy-job-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  static std::string read_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Starts with --log-dir on a file system that does not answer.
  void start_with_waiting_folder() {
    make_folder();
    options_.log_dir = folder_;
    folders_wait = true;
    start();
    ASSERT_TRUE(run_until([&] {
      return text_.find("waiting for the file system of --log-dir " + folder_) != std::string::npos;
    })) << text_;
  }
  bool run_until(const std::function<bool()>& condition, milliseconds limit = kTimeout) {
    const auto deadline = steady_clock::now() + limit;
    while (!condition()) {
      if (steady_clock::now() > deadline) return false;
      loop_.restart();
      loop_.run_one_for(milliseconds(20));
      if (reads_) read_terminal();
    }
    return true;
  }
  // Handles exceptions as ivyrun does: one in a handler ends the job.
  void run_with_care() {
    const auto deadline = steady_clock::now() + kTimeout;
    while (!exit_code_ && steady_clock::now() < deadline) {
      loop_.restart();
      boost::asio::steady_timer stop(loop_, milliseconds(50));
      stop.async_wait([&](const boost::system::error_code& error) {
        if (!error) loop_.stop();
      });
      run_to_the_end(loop_, *job_);
      read_terminal();
    }
  }
  // Sends Ctrl-C three times, so that the launcher exits.
  void leave() {
    for (int i = 0; i < 3; ++i) job_->interrupt(SIGTERM);
    ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
    give_back();
  }
  // Runs the job to its end and returns all text on the terminal.
  std::string event_text() {
    start();
    const bool ended = run_until([this] { return exit_code_.has_value(); });
    give_back();
    EXPECT_TRUE(ended) << text_;
    return text_;
  }
  static bool has_control(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
      if (byte < 0x20 && byte != '\n') return true;
      if (byte == 0x7f || (byte >= 0x80 && byte < 0xa0 && (i == 0 || text[i - 1] >= 0)))
        return true;
      if (byte == 0xc2 && next >= 0x80 && next < 0xa0) return true;
    }
    return false;
  }
  // None of the text controls the terminal, and all of it arrived.
  static void expect_harmless(std::string text) {
    const std::string shown = text;
    for (const std::string& own : {"\r\x1b[K"s, "\x1b[0m"s})
      for (std::size_t at = 0; (at = text.find(own)) != std::string::npos;)
        text.erase(at, own.size());
    EXPECT_FALSE(has_control(text)) << shown;
    EXPECT_NE(text.find("EVIL"), std::string::npos) << shown;
    // It cannot start a line of ivyrun's either.
    EXPECT_EQ(text.find("\nEVIL"), std::string::npos) << shown;
  }

  Options options_;
  boost::asio::io_context loop_{1};
  std::map<std::string, std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Job> job_;
  std::optional<int> exit_code_;
  std::function<void()> on_over_;
  std::jthread reader_;  // Of the terminal, in a dry run. It alone uses text_ until it stops.
  std::string text_;
  std::string job_id_;
  std::string folder_;
  bool reads_ = true;
  int master_ = -1;
  int saved_[2] = {-1, -1};
};

// ---- Text of other hosts
// ------------------------------------------------------------------------

struct EvilWord {
  const char* name;
  std::function<void(Options& options, Node& node)> arrange;
};

// Sends this event as soon as the host's workers run; then they exit with this code.
std::function<void(Options&, Node&)> says(std::function<void(Event&)> fill, int code = 0) {
  return [fill, code](Options&, Node& node) {
    node.on_started = [fill, code, &node] {
      Event event;
      fill(event);
      node.host.send(event);
      for (const std::uint32_t rank : std::set<std::uint32_t>(node.running)) node.end(rank, code);
    };
  };
}

const EvilWord kEvilWords[] = {
    {"LinkDown of a first dial",
     [](Options&, Node& node) {
       node.host.answer = FakeHost::Answer::kRefuse;
       node.host.rejection = LinkDown{LinkFailure::kAuthentication, kEvil, "do " + kEvil};
     }},
    {"LinkDown of a host that was up",
     [](Options&, Node& node) {
       node.on_started = [&node] {
         node.host.answer = FakeHost::Answer::kRefuse;
         node.host.rejection = LinkDown{LinkFailure::kNoSuchJob, kEvil, ""};
         node.host.cut();
       };
     }},
    {"progress on a status line",
     [](Options& options, Node& node) {
       node.host.answer = FakeHost::Answer::kSilent;
       node.host.doing = kEvil;
       options.start_timeout = milliseconds(1'500);
     }},
    {"HelloOk with a trouble",
     [](Options&, Node& node) { node.facts.set_job_directory_error(kEvil); }},
    {"HostFacts in the plan",
     [](Options& options, Node& node) {
       options.dry_run = true;
       for (const auto set : {&HostFacts::set_user<const std::string&>,
                              &HostFacts::set_architecture<const std::string&>,
                              &HostFacts::set_interpreter<const std::string&>,
                              &HostFacts::set_interpreter_version<const std::string&>,
                              &HostFacts::set_program_path<const std::string&>,
                              &HostFacts::set_accelerator_source<const std::string&>})
         (node.facts.*set)(kEvil);
       node.facts.set_accelerators(1);
       Accelerator& device = *node.facts.add_devices();
       device.set_mask_entry(kEvil);
       device.set_bdf(kEvil);
       device.set_uuid(kEvil);
       device.set_interface(kEvil);
       device.add_users(7);
       DeviceView& view = *node.facts.mutable_device_view();
       view.set_present(1);
       view.set_source(kEvil);
       view.set_mask(kEvil);
       view.add_notes(kEvil);
     }},
    {"HostFacts in the variables",
     [](Options& options, Node& node) {
       options.dry_run = true;
       options.explain_env = true;
       node.facts.set_interpreter(kEvil);
       node.facts.set_job_directory(kEvil);
       node.facts.set_accelerators(1);
       Accelerator& device = *node.facts.add_devices();
       device.set_mask_entry(kEvil);
       device.set_uuid(kEvil);
       device.set_bdf(kEvil);
     }},
    {"HostFacts in the plan line",
     [](Options&, Node& node) {
       node.facts.set_accelerators(1);
       Accelerator& device = *node.facts.add_devices();
       device.set_mask_entry(kEvil);
       device.add_users(7);
       node.on_started = [&node] { node.end(0, 0); };
     }},
    {"HostFacts that refuse the plan",
     [](Options&, Node& node) {
       node.facts.set_program_error(kEvil);
       node.facts.set_working_directory_error(kEvil);
       node.facts.set_user(kEvil);
       node.facts.set_program_errno(EACCES);
     }},
    {"StoreOpened",
     [](Options&, Node& node) {
       node.on_command = [&node](const Command& command) {
         if (!command.has_open_store()) return false;
         Event event;
         event.mutable_store_opened()->set_error(kEvil);
         node.host.send(event);
         return true;
       };
     }},
    {"AddressChecked",
     [](Options&, Node& node) {
       node.on_command = [&node](const Command& command) {
         if (!command.has_check_address()) return false;
         Event event;
         event.mutable_address_checked()->set_address(command.check_address().address());
         event.mutable_address_checked()->set_port(command.check_address().port());
         event.mutable_address_checked()->set_error(kEvil);
         node.host.send(event);
         return true;
       };
     }},
    {"StoreLost", says([](Event& event) { event.mutable_store_lost()->set_why(kEvil); })},
    {"Note", says([](Event& event) { event.mutable_note()->set_text(kEvil); })},
    {"Note of a stall", says([](Event& event) {
       event.mutable_note()->set_text(kEvil);
       event.mutable_note()->set_store_stall(true);
       event.mutable_note()->set_warning(true);
     })},
    {"StartFailed", says([](Event& event) {
       event.mutable_start_failed()->set_step(kEvil);
       event.mutable_start_failed()->set_path(kEvil);
     })},
    {"Report with a reason", says([](Event& event) { event.mutable_report()->set_reason(kEvil); })},
    {"Report with leftovers",
     [](Options&, Node& node) {
       node.on_started = [&node] {
         Event event;
         Leftover& left = *event.mutable_report()->add_leftovers();
         left.set_name(kEvil);
         left.set_state(kEvil);
         left.set_waiting_in(kEvil);
         for (const std::uint32_t rank : node.running) node.send_exited(rank, 0);
         for (const std::uint8_t stream : {std::uint8_t{1}, std::uint8_t{2}})
           node.host.print(0, stream, "");
         node.host.send(event);
       };
     }},
    {"Exited with an error file",
     [](Options&, Node& node) {
       node.on_started = [&node] {
         node.end(0, 3, R"({"message": {"message": "EVIL \u001b]0;t\u0007 \u009d0;t\u009c"}})");
       };
     }},
    {"standard error in the summary",
     [](Options& options, Node& node) {
       options.label = "rank";
       node.on_started = [&node] {
         node.host.print(0, 2, "x " + kEvil + "\n");
         node.end(0, 3);
       };
     }},
};

class HostileWordTest : public JobTest, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(HostileWordTest, IsEscapedOnTheTerminal) {
  const EvilWord& word = kEvilWords[GetParam()];
  Node& first = node("node1");
  Node* second = std::string(word.name) == "AddressChecked" ? &node("node2") : nullptr;
  options_.verbose = 1;
  word.arrange(options_, second != nullptr ? *second : first);
  expect_harmless(event_text());
}

INSTANTIATE_TEST_SUITE_P(EachSource, HostileWordTest,
                         ::testing::Range<std::size_t>(0, std::size(kEvilWords)),
                         [](const auto& word) {
                           std::string name = kEvilWords[word.param].name;
                           std::erase_if(name, [](char c) { return c == ' '; });
                           return name;
                         });

// ---- Ranks of other hosts
// ------------------------------------------------------------------------

TEST_F(JobTest, TrustsAHostOnlyForItsOwnRanks) {
  Node& honest = node("node1");
  Node& untrusted = node("node2");
  bool has_forged = false;
  untrusted.on_started = [&] {
    untrusted.send_exited(0, 0);
    untrusted.send_exited(7, 0);
    Event failed;
    failed.mutable_start_failed()->set_rank(0);
    untrusted.host.send(failed);
    for (const std::uint8_t stream : {std::uint8_t{1}, std::uint8_t{2}}) {
      untrusted.host.print(0, stream, "a lie\n");
      untrusted.host.print(0, stream, "");
    }
    has_forged = true;
    untrusted.host.send_note("lied");
  };
  start();
  ASSERT_TRUE(run_until([&] { return has_forged && text_.find("lied") != std::string::npos; }));
  EXPECT_FALSE(exit_code_.has_value());
  honest.host.print(0, 2, "the truth\n");
  honest.end(0, 3);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 3) << text_;
  EXPECT_EQ(text_.find("a lie"), std::string::npos) << text_;
  EXPECT_NE(text_.find("the truth"), std::string::npos) << text_;
}

// Returns a host's description of operations, for rank 0. The number shows which host it is from.
Operations operations_of_rank_0(const Command& command, std::uint64_t number) {
  Operations printed;
  printed.set_number(command.read_operations().number());
  printed.add_usage()->set_cpu_ms(number * 1'000);
  OperationState& state = *printed.add_ranks()->add_running();
  state.set_operation(static_cast<std::uint32_t>(comm_status::Operation::kAllReduce));
  state.set_sequence(number);
  printed.add_ranks()->set_rank(4'000'000'000U);
  printed.add_usage()->set_rank(4'000'000'000U);
  return printed;
}

// The second host's answer arrives last and would replace the first one's.
TEST_F(JobTest, TrustsAHostOnlyForTheOperationsOfItsOwnRanks) {
  Node& honest = node("node1");
  Node& untrusted = node("node2");
  std::optional<Command> lie;
  const auto say = [](Node& node, const Operations& printed) {
    Event event;
    *event.mutable_operations() = printed;
    node.host.send(event);
  };
  untrusted.on_command = [&](const Command& command) {
    if (command.has_read_operations()) lie = command;
    return command.has_read_operations();
  };
  honest.on_command = [&](const Command& command) {
    if (!command.has_read_operations()) return false;
    say(honest, operations_of_rank_0(command, 111));
    return true;
  };
  const auto listen = [](Node& node) {
    Event event;
    event.mutable_rank_updates()->set_generation(0);
    event.mutable_rank_updates()->set_listening(true);
    node.host.send(event);
  };
  honest.on_started = [&] { listen(honest); };
  untrusted.on_started = [&] { listen(untrusted); };
  make_folder();
  options_.metrics_file = folder_ + "/metrics";
  start();
  // First the query of --metrics-file, then that of a stall.
  ASSERT_TRUE(run_until([&] { return lie.has_value(); })) << text_;
  say(untrusted, operations_of_rank_0(*std::exchange(lie, std::nullopt), 666));
  std::string metrics;
  ASSERT_TRUE(run_until([&] {
    metrics = read_file(options_.metrics_file);
    return metrics.find("cpu_seconds") != std::string::npos;
  }));
  EXPECT_NE(metrics.find("rank=\"0\",host=\"node1\"} 111\n"), std::string::npos) << metrics;
  EXPECT_EQ(metrics.find("666"), std::string::npos) << metrics;
  Event stalled;
  stalled.mutable_stalled()->set_generation(0);
  honest.host.send(stalled);
  ASSERT_TRUE(run_until([&] { return lie.has_value(); })) << text_;
  say(untrusted, operations_of_rank_0(*lie, 666));
  ASSERT_TRUE(run_until([&] { return text_.find("all_reduce #111") != std::string::npos; }))
      << text_;
  EXPECT_EQ(text_.find("666"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("4000000000"), std::string::npos) << text_;
  job_->interrupt(SIGTERM);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
}

// ---- The start
// -----------------------------------------------------------------------------------

TEST_F(JobTest, NamesAllUnreachableHosts) {
  node("node1");
  node("node2").host.answer = FakeHost::Answer::kSilent;
  node("node3").host.answer = FakeHost::Answer::kRefuse;
  nodes_.at("node3")->host.rejection =
      LinkDown{LinkFailure::kUnresolved, "node3 has no address", ""};
  const std::string reported = event_text();
  EXPECT_NE(reported.find("1 of 3 hosts could not be reached"), std::string::npos) << reported;
  EXPECT_NE(reported.find("node2"), std::string::npos) << reported;
  EXPECT_NE(reported.find("node3"), std::string::npos) << reported;
  // One host is up, one has failed, one is pending.
  EXPECT_NE(reported.find("hosts 1/3 up"), std::string::npos) << reported;
  EXPECT_NE(reported.find("waiting for node2; failed: node3"), std::string::npos) << reported;
}

// Three hosts, of which the job needs two.
class FewerHostsTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    options_.min_nodes = 2;
    options_.num_nodes = 3;
  }
  // Runs the job on the first and the third host, which start no worker before all are known.
  void expect_start_without_second() {
    for (Node* const each : {&first_, &third_})
      each->on_started = [each] {
        for (const std::uint32_t rank : std::set<std::uint32_t>(each->running)) each->end(rank, 0);
      };
    const std::string reported = event_text();
    EXPECT_EQ(exit_code_, 0) << reported;
    EXPECT_NE(reported.find("warning: starting with 2 of 3 hosts"), std::string::npos) << reported;
    EXPECT_EQ(first_.ranks, std::set<std::uint32_t>{0}) << reported;
    EXPECT_TRUE(second_.ranks.empty()) << reported;
    EXPECT_EQ(third_.ranks, std::set<std::uint32_t>{1}) << reported;
  }

  Node& first_ = node("node1");
  Node& second_ = node("node2");
  Node& third_ = node("node3");
};

TEST_F(FewerHostsTest, StartsWithoutAHostThatCannotReachTheFirst) {
  second_.on_command = [&](const Command& command) {
    if (!command.has_check_address()) return false;
    Event event;
    event.mutable_address_checked()->set_address(command.check_address().address());
    event.mutable_address_checked()->set_port(command.check_address().port());
    event.mutable_address_checked()->set_error("no route");
    second_.host.send(event);
    return true;
  };
  expect_start_without_second();
}

TEST_F(FewerHostsTest, StartsWithoutAHostThatDoesNotCheckTheFirstInTime) {
  options_.start_timeout = milliseconds(1'500);
  second_.on_command = [](const Command& command) { return command.has_check_address(); };
  expect_start_without_second();
}

TEST_F(FewerHostsTest, StartsWithoutAHostThatDoesNotAnswerInTime) {
  options_.start_timeout = milliseconds(1'500);
  second_.on_command = [](const Command& command) { return command.has_hello(); };
  expect_start_without_second();
}

TEST_F(FewerHostsTest, StartsWithoutAHostThatIsLostWhileOthersCheck) {
  second_.on_command = [&](const Command& command) {
    if (!command.has_check_address()) return false;
    second_.host.answer = FakeHost::Answer::kNoSuchJob;
    second_.host.cut();
    return true;
  };
  expect_start_without_second();
}

// The others get --start-timeout again, and are named if they do not use it.
TEST_F(FewerHostsTest, EndsTheJobIfTheRemainingHostsAreLate) {
  options_.start_timeout = milliseconds(1'500);
  second_.host.answer = FakeHost::Answer::kSilent;
  third_.on_command = [](const Command& command) { return command.has_check_address(); };
  const std::string reported = event_text();
  EXPECT_EQ(exit_code_, kExitHostsNotUp) << reported;
  EXPECT_NE(reported.find("node3 has not reported whether it can reach node1"), std::string::npos)
      << reported;
}

// The part of `ivy-node check` on a host: answers each order with the result of a command.
class FakeCheck {
 public:
  explicit FakeCheck(Node& node) : node_(node) {
    node.on_command = [this](const Command& command) {
      if (!command.has_task_input()) return false;
      take(command.task_input());
      return true;
    };
  }

  void take(const TaskInput& input) {
    if (input.end()) return end("ivy-node check exited with code 0");
    orders_.feed(input.bytes());
    const Result<std::optional<std::string>> message = orders_.next();
    ASSERT_TRUE(message.ok() && *message);
    CheckOrder order;
    ASSERT_TRUE(order.ParseFromString(**message));
    ++runs;
    last = order.begin();
    if (on_begin && on_begin()) return;
    CheckReply reply;
    reply.set_started("--check 'probe'");
    send(reply);
    if (hangs) return;
    for (int index = 0; index < order.begin().commands_size(); ++index) {
      reply.mutable_command()->set_index(static_cast<std::uint32_t>(index));
      reply.mutable_command()->set_exit_code(exit_code);
      reply.mutable_command()->set_output(output);
      send(reply);
    }
    if (order.begin().count_devices()) {
      reply.mutable_devices()->set_accelerators(accelerators);
      send(reply);
    }
    reply.mutable_ready();
    send(reply);
  }
  void send(const CheckReply& reply) {
    Event event;
    event.mutable_task_output()->set_task(TASK_CHECK);
    event.mutable_task_output()->set_bytes(stage::framed(reply.SerializeAsString()));
    node_.host.send(event);
  }
  void end(const std::string& why) {
    Event event;
    event.mutable_task_output()->set_task(TASK_CHECK);
    event.mutable_task_output()->set_ended(true);
    event.mutable_task_output()->set_why(why);
    node_.host.send(event);
  }

  int exit_code = 0;
  std::string output;
  bool hangs = false;
  std::uint32_t accelerators = 0;
  std::function<bool()> on_begin;  // Returns true if it has handled the order.
  int runs = 0;
  CheckBegin last;

 private:
  Node& node_;
  stage::MessageSplitter orders_;
};

class GateTest : public FewerHostsTest {
 protected:
  void SetUp() override {
    FewerHostsTest::SetUp();
    options_.checks = {"probe"};
    options_.check_timeout = milliseconds(20'000);
  }
  void need_all_hosts() {
    options_.min_nodes.reset();
    options_.num_nodes.reset();
  }

  FakeCheck first_check_{first_};
  FakeCheck second_check_{second_};
  FakeCheck third_check_{third_};
};

TEST_F(GateTest, StartsWithoutAHostThatFails) {
  second_check_.exit_code = 3;
  second_check_.output = "GPU 3: fell off the bus\n";
  expect_start_without_second();
  EXPECT_NE(
      text_.find("node2 failed a check before the start: --check 'probe': exit code 3: GPU 3: "
                 "fell off the bus"),
      std::string::npos)
      << text_;
  EXPECT_NE(text_.find("without node2 (--check 'probe': exit code 3"), std::string::npos) << text_;
  EXPECT_EQ(first_check_.last.hello().working_directory(), "/");
  EXPECT_EQ(first_check_.runs, 1);
}

TEST_F(GateTest, RejectsAJobThatNeedsEveryHost) {
  need_all_hosts();
  second_check_.exit_code = third_check_.exit_code = 127;
  second_check_.output = third_check_.output = "sh: 1: probe: not found\n";
  const std::string text = event_text();
  EXPECT_EQ(exit_code_, kExitRejected) << text;
  EXPECT_NE(text.find("error[IVY-H020]: hosts node[2-3] failed a check before the start"),
            std::string::npos)
      << text;
  EXPECT_TRUE(first_.ranks.empty());
}

TEST_F(GateTest, RejectsAJobWithTooFewHealthyHosts) {
  second_check_.exit_code = third_check_.exit_code = 1;
  const std::string text = event_text();
  EXPECT_EQ(exit_code_, kExitRejected) << text;
  EXPECT_NE(text.find("--nnodes 2:3 needs 2 healthy hosts"), std::string::npos) << text;
}

TEST_F(GateTest, StartsWithoutAHostThatHangs) {
  options_.check_timeout = milliseconds(1'000);
  second_check_.hangs = true;
  expect_start_without_second();
  EXPECT_NE(text_.find("did not finish within --check-timeout 1 s; it still waits for --check"),
            std::string::npos)
      << text_;
}

TEST_F(GateTest, StartsWithoutAHostWhoseCheckProcessDies) {
  second_check_.on_begin = [&] {
    second_check_.end("ivy-node check was killed by signal 9 (Killed)");
    return true;
  };
  expect_start_without_second();
  EXPECT_NE(text_.find("ivy-node check was killed by signal 9"), std::string::npos) << text_;
}

TEST_F(GateTest, StartsWithoutAHostThatIsLostWhileItIsChecked) {
  second_check_.on_begin = [&] {
    second_.host.answer = FakeHost::Answer::kNoSuchJob;
    second_.host.cut();
    return true;
  };
  expect_start_without_second();
}

TEST_F(GateTest, StartsWithoutAHostThatHasFewerDevices) {
  options_.expect_gpus = 8;
  first_check_.accelerators = third_check_.accelerators = 8;
  second_check_.accelerators = 7;
  expect_start_without_second();
  EXPECT_NE(text_.find("--expect-gpus 8: 7 usable accelerators instead of 8"), std::string::npos)
      << text_;
}

TEST_F(GateTest, ChecksNothingUnlessRequested) {
  options_.checks.clear();
  for (Node* const each : {&first_, &second_, &third_})
    each->on_started = [each] {
      for (const std::uint32_t rank : std::set<std::uint32_t>(each->running)) each->end(rank, 0);
    };
  event_text();
  EXPECT_EQ(exit_code_, 0);
  EXPECT_EQ(first_check_.runs, 0);
}

TEST_F(GateTest, EndsInTimeIfInterrupted) {
  second_check_.hangs = true;
  start();
  ASSERT_TRUE(run_until([&] { return second_check_.runs == 1; })) << text_;
  job_->interrupt(SIGTERM);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_TRUE(first_.ranks.empty());
}

// ---- Hosts that will be stopped
// ------------------------------------------------------------------

class HostNoticesTest : public FewerHostsTest {
 protected:
  void SetUp() override {
    FewerHostsTest::SetUp();
    for (Node* const node : {&first_, &second_, &third_})
      node->on_command = [this, node](const Command& command) { return note(*node, command); };
  }
  bool note(Node& node, const Command& command) {
    if (command.has_signal_workers())
      signals_[node.name].push_back(static_cast<int>(command.signal_workers().signal()));
    if (command.has_stop()) stopped_.insert(node.name);
    if (command.has_start_again()) again_.insert(node.name);
    if (!command.has_begin_generation()) return false;
    Event event;
    event.mutable_generation_begun()->set_generation(command.begin_generation().generation());
    node.host.send(event);
    return true;
  }
  void start_all() {
    start();
    ASSERT_TRUE(run_until([&] {
      return !first_.ranks.empty() && !second_.ranks.empty() && !third_.ranks.empty();
    })) << text_;
  }
  static void give_notice(Node& node, const std::string& source, const std::string& reason,
                          int seconds, bool withdrawn = false) {
    Event event;
    HostNotice& notice = *event.mutable_host_notice();
    notice.set_source(source);
    notice.set_reason(reason);
    if (seconds > 0)
      notice.set_deadline_ns(static_cast<std::uint64_t>(monotonic_ns()) +
                             seconds * 1'000'000'000ull);
    notice.set_withdrawn(withdrawn);
    node.host.send(event);
  }
  bool has_text(const std::string& text) {
    return run_until([&] { return text_.find(text) != std::string::npos; }, milliseconds(15'000));
  }
  std::size_t count_of(const std::string& text) const {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text_.find(text, at)) != std::string::npos; ++at) ++count;
    return count;
  }

  std::map<std::string, std::vector<int>> signals_;
  std::set<std::string> stopped_, again_;
};

TEST_F(HostNoticesTest, SignalsTheRanksAndContinuesWithoutTheHost) {
  start_all();
  give_notice(third_, "AWS", "spot interruption", 120);
  ASSERT_TRUE(has_text("notice: node3 will be stopped in 120 s (AWS: spot interruption)")) << text_;
  ASSERT_TRUE(
      has_text("SIGTERM to 3 ranks; the attempt is stopped in 104 s, and the next one runs "
               "without node3"))
      << text_;
  ASSERT_TRUE(run_until([&] { return signals_.size() == 3; })) << text_;
  // One has saved its state, one has no handler, and one fails because of its peers.
  second_.end(1, 75);
  third_.end(2, 128 + SIGTERM);
  first_.end(0, 1);
  ASSERT_TRUE(run_until([&] { return again_.size() == 2; })) << text_;
  EXPECT_EQ(again_, (std::set<std::string>{"node1", "node2"}));
  EXPECT_TRUE(stopped_.empty());
  EXPECT_EQ(signals_["node1"], std::vector<int>{SIGTERM});
  EXPECT_TRUE(
      has_text("attempt 1 of 2 failed: node3 will be stopped (AWS: spot interruption); "
               "attempt 2 starts in 1 s"))
      << text_;
  leave();
}

TEST_F(HostNoticesTest, StopsTheAttemptBeforeTheDeadline) {
  options_.preempt_signal = SIGUSR1;
  start_all();
  give_notice(second_, "SIGTERM to its supervisor", "", 2);
  ASSERT_TRUE(has_text("SIGUSR1 to 3 ranks; the attempt is stopped in 1 s")) << text_;
  ASSERT_TRUE(run_until([&] { return again_.size() == 2; })) << text_;
  EXPECT_EQ(stopped_.size(), 3u);
  EXPECT_EQ(again_, (std::set<std::string>{"node1", "node3"}));
  leave();
}

TEST_F(HostNoticesTest, MoveTheStoreIfTheFirstHostLeaves) {
  start_all();
  give_notice(first_, "Azure", "spot eviction", 2);
  ASSERT_TRUE(run_until([&] { return again_.size() == 2; })) << text_;
  EXPECT_EQ(again_, (std::set<std::string>{"node2", "node3"}));
  leave();
}

TEST_F(HostNoticesTest, SendOneSignalIfTheyArriveTogether) {
  options_.min_nodes = 1;
  start_all();
  give_notice(second_, "AWS", "spot interruption", 120);
  give_notice(third_, "AWS", "spot interruption", 120);
  ASSERT_TRUE(has_text("notice: node3")) << text_;
  for (Node* const node : {&first_, &second_, &third_})
    for (const std::uint32_t rank : std::set<std::uint32_t>(node->running)) node->end(rank, 0);
  ASSERT_TRUE(run_until([&] { return !again_.empty(); })) << text_;
  EXPECT_EQ(again_, std::set<std::string>{"node1"});
  EXPECT_EQ(count_of("SIGTERM to 3 ranks"), 1u) << text_;
  EXPECT_EQ(signals_["node1"], std::vector<int>{SIGTERM});
  leave();
}

TEST_F(HostNoticesTest, EndTheJobIfItNeedsTheHost) {
  options_.min_nodes.reset();
  start_all();
  give_notice(second_, "AWS", "spot interruption", 2);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(exit_code_, kExitPreempted) << text_;
  EXPECT_EQ(stopped_.size(), 3u);
  EXPECT_NE(text_.find("the job is stopped in 1 s (exit code 75)"), std::string::npos) << text_;
  EXPECT_NE(text_.find("stopped because node2 will be stopped (AWS: spot interruption)"),
            std::string::npos)
      << text_;
}

TEST_F(HostNoticesTest, AreNoFailureOfRanksThatExitByThemselves) {
  options_.min_nodes.reset();
  start_all();
  give_notice(second_, "AWS", "spot interruption", 120);
  ASSERT_TRUE(run_until([&] { return signals_.size() == 3; })) << text_;
  first_.end(0, 0);
  second_.end(1, 75);
  third_.end(2, 128 + SIGTERM);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(exit_code_, kExitPreempted) << text_;
  EXPECT_TRUE(stopped_.empty());
}

TEST_F(HostNoticesTest, MayBeWithdrawn) {
  start_all();
  give_notice(second_, "Azure", "reboot", 4);
  give_notice(second_, "Azure", "reboot", 0, /*withdrawn=*/true);
  ASSERT_TRUE(has_text("notice withdrawn: node2 will not be stopped (Azure: reboot)")) << text_;
  run_until([] { return false; }, milliseconds(4'500));
  EXPECT_TRUE(stopped_.empty());
  for (Node* const node : {&first_, &second_, &third_})
    for (const std::uint32_t rank : std::set<std::uint32_t>(node->running)) node->end(rank, 0);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  EXPECT_EQ(exit_code_, 0) << text_;
}

TEST_F(HostNoticesTest, WithoutADeadlineDoNotDisturbAJobThatNeedsTheHost) {
  options_.min_nodes.reset();
  start_all();
  give_notice(second_, "AWS", "rebalance recommendation", 0);
  ASSERT_TRUE(has_text("notice: node2 should be left")) << text_;
  run_until([] { return false; }, milliseconds(1'500));
  EXPECT_TRUE(signals_.empty());
  leave();
}

TEST_F(HostNoticesTest, LeaveAHostOutBeforeTheStart) {
  second_.on_command = [&](const Command& command) {
    if (!command.has_check_address()) return false;
    give_notice(second_, "Google Cloud", "preemption", 30);
    return true;
  };
  expect_start_without_second();
}

TEST_F(HostNoticesTest, EscapeTheTextOfAHost) {
  start_all();
  give_notice(second_, kEvil, kEvil, 120);
  ASSERT_TRUE(has_text("EVIL")) << text_;
  leave();
  expect_harmless(text_);
}

// The connection works but is slow, so advice on how to test it would not help.
TEST_F(JobTest, AllowsMoreTimeForAnUpload) {
  Node& host = node("node1");
  host.host.answer = FakeHost::Answer::kSilent;
  host.host.doing = sending_step("sending ivy-node", UploadState{40, "5 MiB"});
  options_.start_timeout = milliseconds(1'500);
  const std::string reported = event_text();
  EXPECT_NE(reported.find("allow more time: --start-timeout 10m"), std::string::npos) << reported;
  EXPECT_EQ(reported.find("try: ssh"), std::string::npos) << reported;
}

struct StoreTrouble {
  Code code;
  const char* advice;
  std::uint16_t port_low = 0;
  std::uint16_t port_high = 0;
};
const StoreTrouble kStoreTroubles[] = {
    {Code::kNotFound, "use --master-addr with an address that node1 has"},
    {Code::kAlreadyExists, "start the job again"},
    {Code::kAlreadyExists, "use --master-port with a port that is free on node1", 29500, 29500},
    {Code::kAlreadyExists, "use a --port-range with more free ports on node1", 29500, 29510},
    {Code::kInternal, "use --no-store: rank 0's framework then listens on MASTER_PORT"},
};

class StoreTroubleTest : public JobTest, public ::testing::WithParamInterface<StoreTrouble> {};

TEST_P(StoreTroubleTest, HasItsSpecificAdvice) {
  options_.port_low = GetParam().port_low;
  options_.port_high = GetParam().port_high;
  Node& host = node("node1");
  host.on_command = [&host](const Command& command) {
    if (!command.has_open_store()) return false;
    Event event;
    event.mutable_store_opened()->set_error("it does not work");
    event.mutable_store_opened()->set_code(static_cast<std::uint32_t>(GetParam().code));
    host.host.send(event);
    return true;
  };
  const std::string reported = event_text();
  EXPECT_NE(reported.find("IVY-H011"), std::string::npos) << reported;
  for (const StoreTrouble& trouble : kStoreTroubles)
    EXPECT_EQ(reported.find(trouble.advice) != std::string::npos,
              trouble.advice == GetParam().advice)
        << trouble.advice << " in:\n"
        << reported;
}

INSTANTIATE_TEST_SUITE_P(EachCode, StoreTroubleTest, ::testing::ValuesIn(kStoreTroubles));

// ---- The store and restarts
// ---------------------------------------------------------------------------------

class RestartTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    options_.max_restarts = 2;
  }
  // Starts the job and makes rank `rank` fail once every node has started.
  void fail_rank(Node& node, std::uint32_t rank) {
    start();
    ASSERT_TRUE(run_until([&] {
      return std::all_of(nodes_.begin(), nodes_.end(),
                         [](const auto& each) { return !each.second->ranks.empty(); });
    })) << text_;
    node.end(rank, 1);
  }
  static bool ignores_new_attempts(const Command& command) {
    return command.has_begin_generation();
  }
};

TEST_F(RestartTest, ReportsWhatALateAttemptWaitsFor) {
  Node& node = this->node("node1");
  node.on_command = ignores_new_attempts;
  fail_rank(node, 0);
  EXPECT_TRUE(run_until(
      [&] {
        return text_.find(
                   "attempt 2 is waiting: the job's store on node1 has not started the attempt") !=
               std::string::npos;
      },
      milliseconds(20'000)))
      << text_;
  leave();
}

// The second host fails the check before the second attempt, which starts without it.
TEST_F(RestartTest, ChecksTheHostsAgainBeforeTheNextAttempt) {
  options_.min_nodes = 1;
  options_.num_nodes = 2;
  options_.checks = {"probe"};
  Node& first = node("node1");
  Node& second = node("node2");
  FakeCheck first_check(first);
  FakeCheck second_check(second);
  bool started_again = false;
  first.on_command = [&, checks = first.on_command](const Command& command) {
    started_again |= command.has_start_again();
    return checks(command);
  };
  second_check.on_begin = [&] {
    if (second_check.runs == 2) second_check.exit_code = 1;
    return false;
  };
  fail_rank(first, 0);
  ASSERT_TRUE(run_until([&] {
    return text_.find("node2 failed a check before attempt 2: --check 'probe'") !=
           std::string::npos;
  })) << text_;
  EXPECT_EQ(first_check.runs, 2);
  EXPECT_EQ(second_check.runs, 2);
  leave();
}

TEST_F(RestartTest, RestartsWithANewStoreIfTheStoreIsLost) {
  Node& node = this->node("node1");
  std::vector<std::uint32_t> opened;
  bool started_again = false;
  node.on_command = [&](const Command& command) {
    if (command.has_open_store()) opened.push_back(command.open_store().generation());
    started_again |= command.has_start_again();
    return false;
  };
  node.on_started = [&] {
    Event event;
    event.mutable_store_lost()->set_why("the store was killed by signal 9 (Killed)");
    node.host.send(event);
  };
  start();
  ASSERT_TRUE(run_until([&] { return started_again; })) << text_;
  EXPECT_EQ(opened, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_NE(text_.find("attempt 1 of 3 failed: the job's store on host node1 was lost: the store "
                       "was killed by signal 9 (Killed)"),
            std::string::npos)
      << text_;
  leave();
}

TEST_F(RestartTest, EndsTheJobIfTheStoreIsLostWithoutRestarts) {
  options_.max_restarts = 0;
  Node& node = this->node("node1");
  node.on_started = [&] {
    Event event;
    event.mutable_store_lost()->set_why("the store was killed by signal 9 (Killed)");
    node.host.send(event);
  };
  const std::string reported = event_text();
  EXPECT_EQ(exit_code_, kExitHostLost);
  EXPECT_NE(reported.find("IVY-R008"), std::string::npos) << reported;
}

// The first host is lost after its store was told to begin the next attempt.
TEST_F(RestartTest, ContinuesIfTheFirstHostIsLostBeforeItsStoreAnswers) {
  options_.min_nodes = 2;
  Node& first = node("node1");
  Node& second = node("node2");
  Node& third = node("node3");
  bool was_asked = false;
  bool started_again = false;
  first.on_command = [&](const Command& command) {
    was_asked |= ignores_new_attempts(command);
    return ignores_new_attempts(command);
  };
  third.on_command = [&](const Command& command) {
    started_again |= command.has_start_again();
    return false;
  };
  fail_rank(second, 1);
  ASSERT_TRUE(run_until([&] { return was_asked; })) << text_;
  first.host.answer = FakeHost::Answer::kNoSuchJob;
  first.host.cut();
  EXPECT_TRUE(run_until([&] { return started_again; }, std::chrono::seconds(20))) << text_;
  leave();
}

// The store's answer arrives after the interrupt.
TEST_F(RestartTest, EndsTheJobIfInterruptedWhileTheStoreIsAwaited) {
  Node& node = this->node("node1");
  bool was_asked = false;
  bool started_again = false;
  node.on_command = [&](const Command& command) {
    was_asked |= ignores_new_attempts(command);
    started_again |= command.has_start_again();
    return ignores_new_attempts(command);
  };
  fail_rank(node, 0);
  ASSERT_TRUE(run_until([&] { return was_asked; })) << text_;
  run_until([] { return false; }, milliseconds(1'500));  // The pause.
  job_->interrupt(SIGINT);
  Event event;
  event.mutable_generation_begun()->set_generation(1);
  node.host.send(event);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 128 + SIGINT) << text_;
  EXPECT_FALSE(started_again) << text_;
}

// The directory of the next attempt is opened after the interrupt.
TEST_F(RestartTest, EndsTheJobIfInterruptedWhileItsFilesAreOpened) {
  make_folder();
  options_.log_dir = folder_;
  Node& node = this->node("node1");
  bool started_again = false;
  node.on_command = [&](const Command& command) {
    started_again |= command.has_start_again();
    if (!command.has_begin_generation()) return false;
    Event event;
    event.mutable_generation_begun()->set_generation(1);
    node.host.send(event);
    return true;
  };
  node.on_started = [] { folders_wait = true; };
  fail_rank(node, 0);
  ASSERT_TRUE(run_until([&] {
    return text_.find("waiting for the file system of --log-dir") != std::string::npos;
  })) << text_;
  job_->interrupt(SIGINT);
  folders_wait = false;
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 128 + SIGINT) << text_;
  EXPECT_FALSE(started_again) << text_;
}

TEST_F(RestartTest, NamesTheStoreThatDoesNotBeginTheAttemptInTime) {
  options_.start_timeout = milliseconds(1'500);
  Node& first = node("node1");
  first.on_command = ignores_new_attempts;
  fail_rank(first, 0);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); }, std::chrono::seconds(20))) << text_;
  give_back();
  EXPECT_EQ(exit_code_, kExitHostsNotUp);
  EXPECT_NE(text_.find("attempt 2 could not start within --start-timeout"), std::string::npos)
      << text_;
  EXPECT_NE(text_.find("the job's store on node1 has not started the attempt"), std::string::npos)
      << text_;
}

TEST_F(JobTest, NamesAStoreThatDoesNotOpenInTime) {
  options_.start_timeout = milliseconds(1'500);
  node("node1").on_command = [](const Command& command) { return command.has_open_store(); };
  node("node2");
  const std::string reported = event_text();
  EXPECT_EQ(exit_code_, kExitHostsNotUp);
  EXPECT_NE(reported.find("its store has not confirmed that it listens on"), std::string::npos)
      << reported;
}

// ---- Takeover
// ---------------------------------------------------------------------------------

// Two nodes; a test lets one or both of them answer the new launcher.
class TakeoverTest : public JobTest {
 protected:
  void TearDown() override {
    JobTest::TearDown();
    for (const FoundJob& job : find_launcher_directories())
      if (job.directory.job_id == job_id_) std::filesystem::remove_all(job.directory.path);
  }
  void begin() {
    start(record_of_nodes());
    ASSERT_TRUE(run_until([&] { return first_.host.writes > 0 && second_.host.writes > 0; }))
        << text_;
  }
  // `events`: number of events that follow immediately.
  static void answer(Node& node, std::uint32_t events, std::uint32_t max_restarts = 0) {
    Event event;
    event.mutable_taken_over()->set_generation(0);
    event.mutable_taken_over()->set_events(events);
    event.mutable_taken_over()->set_max_restarts(max_restarts);
    node.host.send(event);
  }
  // The first node sends events of that size endlessly; the second sends nothing.
  void expect_rejection(std::size_t bytes) {
    begin();
    answer(first_, ~0u);
    Event event;
    if (bytes > 0) event.mutable_note()->set_text(std::string(bytes, 'x'));
    const std::size_t at_once = std::max<std::size_t>(1, 1'000 / (bytes / 1'000 + 1));
    std::size_t printed = 0;
    EXPECT_TRUE(run_until([&] {
      for (std::size_t i = 0; i < at_once && first_.host.is_attached(); ++i, ++printed)
        first_.host.send(event);
      loop_.restart();
      loop_.poll();
      return exit_code_.has_value() || printed > kMaxEvents;
    }));
    give_back();
    ASSERT_TRUE(exit_code_.has_value()) << printed << " events are kept, and more would be";
    EXPECT_EQ(*exit_code_, kExitHostsNotUp);
    const std::size_t at = text_.find("host node1 sent more than ivyrun can hold");
    ASSERT_NE(at, std::string::npos) << text_;
    EXPECT_EQ(text_.find("cannot be taken over", at), std::string::npos) << "it is reported once";
    EXPECT_NE(text_.find("it keeps running"), std::string::npos) << text_;
    for (const Node* node : {&first_, &second_})
      for (const Command& command : node->host.commands)
        EXPECT_FALSE(command.has_stop() || command.has_finish()) << command.kind_case();
  }

  static constexpr std::size_t kMaxEvents = 400'000;
  Node& first_ = node("node1");
  Node& second_ = node("node2");
};

TEST_F(TakeoverTest, FailsIfAHostSendsTooMuch) { expect_rejection(1u << 20); }

// Each event takes more memory in the launcher than it has bytes.
TEST_F(TakeoverTest, FailsIfAHostHasTooManyEvents) { expect_rejection(0); }

TEST_F(TakeoverTest, WaitsForTheLastHostBeforeHandlingEvents) {
  begin();
  answer(first_, 2);
  first_.start(0);
  first_.host.send_note("what the first has said");
  first_.host.send_note("and one thing more");
  const auto deadline = steady_clock::now() + milliseconds(200);
  EXPECT_FALSE(run_until([&] { return text_.find("first has said") != std::string::npos; },
                         milliseconds(200)))
      << text_;
  EXPECT_GE(steady_clock::now(), deadline);
  answer(second_, 1);
  second_.start(1);
  ASSERT_TRUE(run_until([&] { return text_.find("one thing more") != std::string::npos; }))
      << text_;
  const std::size_t taken = text_.find("took over the job");
  ASSERT_NE(taken, std::string::npos) << text_;
  EXPECT_LT(taken, text_.find("what the first has said"));
  EXPECT_LT(text_.find("what the first has said"), text_.find("and one thing more"));
  first_.end(0, 0);
  second_.end(1, 0);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 0) << text_;
}

TEST_F(TakeoverTest, DoesNotWaitForAHostThatIsLostDuringTakeover) {
  begin();
  answer(second_, 3);
  second_.start(1);
  answer(first_, 1);
  first_.start(0);
  EXPECT_FALSE(run_until([&] { return text_.find("took over the job") != std::string::npos; },
                         milliseconds(200)));
  second_.host.answer = FakeHost::Answer::kNoSuchJob;
  second_.host.cut();
  ASSERT_TRUE(run_until([&] { return text_.find("took over the job") != std::string::npos; }))
      << text_;
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, kExitHostLost) << text_;
  EXPECT_NE(text_.find("supervisor on host node2 was lost"), std::string::npos) << text_;
}

// The hosts know how many restarts are allowed; the record does not.
TEST_F(TakeoverTest, RestartsAJobWhoseStoreIsLost) {
  begin();
  for (Node* const node : {&first_, &second_}) answer(*node, 1, /*max_restarts=*/1);
  first_.start(0);
  second_.start(1);
  Event event;
  event.mutable_store_lost()->set_why("killed");
  first_.host.send(event);
  EXPECT_TRUE(run_until([&] {
    return exit_code_ ||
           text_.find("attempt 1 of 2 failed: the job's store on host node1 was lost") !=
               std::string::npos;
  })) << text_;
  EXPECT_FALSE(exit_code_.has_value()) << text_;
  leave();
}

TEST_F(TakeoverTest, RestartsAJobThatMakesNoProgress) {
  options_.on_stall = OnStall::kStop;
  options_.stall_timeout = std::chrono::seconds(1);
  for (const std::uint32_t rank : {0u, 1u}) {
    Node& node = rank == 0 ? first_ : second_;
    node.on_command = [&node, rank](const Command& command) {
      if (!command.has_collect_stacks()) return false;
      HostEvidence evidence;
      evidence.add_ranks()->set_rank(rank);
      Event event;
      event.mutable_evidence_part()->set_number(command.collect_stacks().number());
      event.mutable_evidence_part()->set_bytes(evidence.SerializeAsString());
      event.mutable_evidence_part()->set_last(true);
      node.host.send(event);
      return true;
    };
  }
  begin();
  for (Node* const node : {&first_, &second_}) answer(*node, 1, /*max_restarts=*/1);
  first_.start(0);
  second_.start(1);
  EXPECT_TRUE(run_until([&] {
    return exit_code_ ||
           text_.find("attempt 1 of 2 failed: its ranks made no progress") != std::string::npos;
  })) << text_;
  EXPECT_FALSE(exit_code_.has_value()) << text_;
  leave();
}

TEST_F(TakeoverTest, NamesAHostThatDoesNotAnswerInTime) {
  options_.start_timeout = milliseconds(300);
  begin();
  answer(first_, 1);
  first_.start(0);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, kExitHostsNotUp) << text_;
  EXPECT_NE(text_.find("cannot be taken over: node2"), std::string::npos) << text_;
  EXPECT_NE(text_.find("did not respond within --start-timeout"), std::string::npos) << text_;
}

TEST_F(TakeoverTest, KeepsItsExitIfItIsInterruptedAfterItHasGivenUp) {
  options_.start_timeout = milliseconds(300);
  begin();
  answer(first_, 1);
  first_.start(0);
  ASSERT_EQ(tcflow(STDERR_FILENO, TCOOFF), 0);  // It has given up, but cannot print that yet.
  EXPECT_FALSE(run_until([&] { return exit_code_.has_value(); }, milliseconds(800)));
  job_->interrupt(SIGINT);
  EXPECT_FALSE(run_until([&] { return exit_code_.has_value(); }, milliseconds(200)));
  ASSERT_EQ(tcflow(STDERR_FILENO, TCOON), 0);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, kExitHostsNotUp) << text_;
  EXPECT_NE(text_.find("it keeps running"), std::string::npos) << text_;
}

// ---- The end
// -------------------------------------------------------------------------------------

// All hosts have reported, but their last output is not read.
TEST_F(JobTest, ReportsThatTheEndWaitsForAReader) {
  Node& host = node("node1");
  host.on_started = [&] {
    host.running.clear();
    host.send_exited(0, 3);
    host.report();
  };
  start();
  ASSERT_TRUE(run_until([&] { return text_.find("waiting for the reader") != std::string::npos; }))
      << text_;
  EXPECT_FALSE(exit_code_.has_value());
  job_->interrupt(SIGINT);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 3) << "the worker's failure came first";
  EXPECT_NE(text_.find("SIGINT: discarding the rest of the output"), std::string::npos) << text_;
  EXPECT_NE(text_.find("rank 0 failed first"), std::string::npos) << text_;
}

TEST_F(JobTest, StopsInOrderAfterAnExceptionInAHandler) {
  options_.lease = milliseconds(4'000);
  Node& host = node("node1");
  host.on_started = [&] { throw std::bad_alloc(); };
  start();
  run_with_care();
  give_back();
  ASSERT_TRUE(exit_code_.has_value()) << text_;
  EXPECT_EQ(*exit_code_, kExitInternal) << text_;
  EXPECT_TRUE(host.is_stopping) << "its workers were not stopped";
  EXPECT_NE(text_.find("IVY-X001"), std::string::npos) << text_;
}

TEST_F(JobTest, NamesAStalledFileSystemBeforeTheStartAndGivesUpInTime) {
  options_.start_timeout = milliseconds(3'000);
  Node& host = node("node1");
  start_with_waiting_folder();
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, kExitRejected) << text_;
  EXPECT_NE(text_.find("did not respond within --start-timeout"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("all ranks have exited"), std::string::npos) << text_;
  EXPECT_TRUE(host.ranks.empty());
}

TEST_F(JobTest, NamesNoWorkersIfInterruptedBeforeTheStart) {
  node("node1");
  start_with_waiting_folder();
  job_->interrupt(SIGINT);
  ASSERT_TRUE(run_until([&] { return exit_code_.has_value(); })) << text_;
  give_back();
  EXPECT_EQ(*exit_code_, 128 + SIGINT) << text_;
  EXPECT_NE(text_.find("no worker has been started"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("0 workers"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("all ranks have exited"), std::string::npos) << text_;
}

// Every worker has exited, and no later event would end the launcher.
TEST_F(JobTest, ExitsAfterAnExceptionAtTheEnd) {
  Node& host = node("node1");
  host.on_started = [&] { host.end(0, 0); };
  int calls = 0;
  on_over_ = [&] {
    if (++calls <= 2) throw std::runtime_error("no luck \x1b[31m");
  };
  start();
  run_with_care();
  give_back();
  ASSERT_TRUE(exit_code_.has_value()) << text_;
  EXPECT_EQ(*exit_code_, kExitInternal) << text_;
  EXPECT_NE(text_.find("internal error in ivyrun: no luck"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("luck \x1b"), std::string::npos) << text_;
}

TEST_F(JobTest, ExitsAfterAnExceptionWhileFinishingHosts) {
  Node& host = node("node1");
  host.on_started = [&] { host.end(0, 0); };
  host.on_command = [&](const Command& command) -> bool {
    if (command.has_finish()) throw std::bad_alloc();
    return false;
  };
  start();
  run_with_care();
  give_back();
  ASSERT_TRUE(exit_code_.has_value()) << text_;
  EXPECT_EQ(*exit_code_, kExitInternal) << text_;
  EXPECT_NE(text_.find("IVY-X001"), std::string::npos) << text_;
}

// The caller exits immediately after that, so the text must have been written.
TEST_F(JobTest, PrintsRepeatedFailuresBeforeExiting) {
  node("node1");
  start();
  on_over_ = [&] { throw std::runtime_error("the end fails"); };
  for (int i = 0; i < 8; ++i)
    boost::asio::post(loop_, [] { throw std::runtime_error("the loop fails"); });
  run_to_the_end(loop_, *job_);
  read_terminal();
  const std::string shown = text_;
  give_back();
  EXPECT_NE(shown.find("keeps failing and exits: the "), std::string::npos) << shown;
}

// The file system of the directory does not answer: the hosts still receive heartbeats, and the job
// continues.
TEST_F(JobTest, ContinuesWhileTheFileSystemStalls) {
  char folder[] = "/tmp/ivy-job-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  folder_ = folder;
  options_.log_dir = folder_;
  options_.lease = milliseconds(2'000);
  Node& host = node("node1");
  std::string path;
  int reader = -1;
  const std::string chunk(64u << 10, 'x');
  const int chunks = 400;
  host.on_started = [&] {
    for (int i = 0; i < chunks; ++i) host.host.print(0, 1, chunk);
    host.end(0, 0);
  };
  host.on_command = [&](const Command& command) {
    if (!command.has_hello()) return false;
    // As with a stalled server: writes block.
    path = folder_ + "/" + job_id_ + "/0/rank00000.out";
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return false;
  };
  start();
  // Much longer than the lease.
  const int writes_before = host.host.writes;
  run_until([&] { return exit_code_.has_value(); }, milliseconds(6'000));
  EXPECT_FALSE(exit_code_.has_value()) << "the end does not wait for the files";
  EXPECT_GT(host.host.writes, writes_before + 4) << "no heartbeats";
  std::size_t read_bytes = 0;
  ASSERT_TRUE(run_until([&] {
    char buffer[65536];
    for (ssize_t count = 0; (count = read(reader, buffer, sizeof buffer)) > 0;)
      read_bytes += static_cast<std::size_t>(count);
    return exit_code_.has_value();
  }));
  give_back();
  close(reader);
  EXPECT_EQ(*exit_code_, 0) << text_.substr(text_.size() - 1000);
  EXPECT_EQ(read_bytes, chunk.size() * chunks) << text_.substr(text_.size() - 1000);
}

}  // namespace
}  // namespace ivy
