// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/world.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <cstdio>
#include <numeric>

#include "proto/os/listening_socket.h"
#include "rendezvous/server/server.h"
#include "tests/support/leak_guard.h"

namespace ivy::comm::test {
namespace {

const std::string kJobId(32, '0');
const std::string kToken(32, 't');
constexpr std::size_t kOutputMax = 16 * 1024;

[[noreturn]] void serve_store(int listening) {
  {
    boost::asio::io_context loop(1);
    store::ServerOptions options;
    options.job_id = kJobId;
    options.token = kToken;
    options.log = [](const std::string&) {};
    store::Server server(loop, options);
    server.listen(listening, store::Server::Dialect::kNative);
    loop.run();
  }
  _exit(1);
}

// Forks a child that cannot outlive the test, however that ends.
template <class Body>
pid_t fork_child(Body body) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  body();
  _exit(0);
}

void kill_and_reap(pid_t child, int* status) {
  kill(child, SIGKILL);
  while (waitpid(child, status, 0) < 0 && errno == EINTR) {
  }
}

class Store {
 public:
  Store() {
    const int listening = listen_tcp("127.0.0.1", 0).value();
    address_ = store::address_of(listening);
    child_ = fork_child([listening] { serve_store(listening); });
    close(listening);
    char path[] = "/tmp/ivy-comm-test-XXXXXX";
    const int token = mkstemp(path);
    EXPECT_EQ(write(token, kToken.data(), kToken.size()), static_cast<ssize_t>(kToken.size()));
    close(token);
    token_file_ = path;
  }
  ~Store() {
    int status = 0;
    kill_and_reap(child_, &status);
    unlink(token_file_.c_str());
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& address() const { return address_; }
  const std::string& token_file() const { return token_file_; }
  pid_t process() const { return child_; }

 private:
  pid_t child_ = -1;
  std::string address_;
  std::string token_file_;
};

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

void set_environment(const Hosts& hosts, int rank, const Store& store) {
  int host = 0;
  for (int first = 0; first + hosts[static_cast<std::size_t>(host)] <= rank; ++host) {
    first += hosts[static_cast<std::size_t>(host)];
  }
  set("IVY_RANK", std::to_string(rank));
  set("IVY_WORLD_SIZE", std::to_string(rank_count(hosts)));
  set("IVY_NODE_RANK", std::to_string(host));
  set("IVY_NUM_NODES", std::to_string(hosts.size()));
  set("IVY_STORE", store.address());
  set("IVY_JOB_ID", kJobId);
  set("IVY_TOKEN_FILE", store.token_file());
  set("IVY_GENERATION", "0");
  set("IVY_TEST_STORE_PID", std::to_string(store.process()));
  unsetenv("IVY_CONTROL");
}

struct RankProcess {
  pid_t pid = -1;
  int output = -1;
  bool is_reaped = false;
};

void read_output(RankProcess& process, RankEnd& end) {
  char buffer[4096];
  const ssize_t count = read(process.output, buffer, sizeof buffer);
  if (count > 0) {
    const std::size_t room = kOutputMax - std::min(kOutputMax, end.output.size());
    end.output.append(buffer, std::min(room, static_cast<std::size_t>(count)));
  } else if (count == 0 || errno != EINTR) {
    close(process.output);
    process.output = -1;
  }
}

void read_outputs(std::vector<RankProcess>& processes, std::vector<RankEnd>& ends, int wait_ms) {
  std::vector<pollfd> polled;
  for (const RankProcess& process : processes) polled.push_back({process.output, POLLIN, 0});
  if (poll(polled.data(), polled.size(), wait_ms) <= 0) return;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents != 0) read_output(processes[i], ends[i]);
  }
}

// Returns the number of processes that are still running.
std::size_t reap(std::vector<RankProcess>& processes, std::vector<RankEnd>& ends) {
  std::size_t running = 0;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].is_reaped) continue;
    if (waitpid(processes[i].pid, &ends[i].status, WNOHANG) == processes[i].pid) {
      processes[i].is_reaped = true;
    } else {
      ++running;
    }
  }
  return running;
}

void end_rank(RankProcess& process, RankEnd& end) {
  if (process.is_reaped) return;
  kill_and_reap(process.pid, &end.status);
  process.is_reaped = true;
}

// Adds the stack of a late rank to its output before it is killed.
void show_stack(const RankProcess& process, RankEnd& end) {
  const std::string command = "timeout 20 gdb -p " + std::to_string(process.pid) +
                              " -batch -ex 'thread apply all backtrace 16' 2>/dev/null | grep '^#'";
  FILE* const stack = popen(command.c_str(), "r");
  if (stack == nullptr) return;
  char line[512];
  while (std::fgets(line, sizeof line, stack) != nullptr) end.output += line;
  pclose(stack);
}

RankProcess start_rank(const Hosts& hosts, int rank, const Store& store, const RankBody& body,
                       const std::vector<RankProcess>& earlier) {
  int pipe_ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  RankProcess process;
  process.output = pipe_ends[0];
  process.pid = fork_child([&] {
    for (const RankProcess& other : earlier) close(other.output);
    close(pipe_ends[0]);
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[1]);
    set_environment(hosts, rank, store);
    body(rank);
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  close(pipe_ends[1]);
  return process;
}

}  // namespace

int rank_count(const Hosts& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

std::string hosts_text(const Hosts& hosts) {
  std::string text;
  for (const int ranks : hosts) text += (text.empty() ? "" : "_") + std::to_string(ranks);
  return text;
}

std::vector<RankEnd> run_world(const Hosts& hosts, const RankBody& body,
                               const WorldOptions& options) {
  const ivy::test::LeakGuard guard;
  const Store store;
  std::vector<RankProcess> processes;
  std::vector<RankEnd> ends(static_cast<std::size_t>(rank_count(hosts)));
  for (int rank = 0; rank < rank_count(hosts); ++rank) {
    processes.push_back(start_rank(hosts, rank, store, body, processes));
  }
  const auto deadline = std::chrono::steady_clock::now() + scaled_time(options.deadline);
  const std::size_t left_over = options.stopped_rank >= 0 ? 1 : 0;
  while (reap(processes, ends) > left_over && std::chrono::steady_clock::now() < deadline) {
    read_outputs(processes, ends, 5);
  }
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (!processes[i].is_reaped && static_cast<int>(i) != options.stopped_rank) {
      show_stack(processes[i], ends[i]);
    }
    ends[i].is_late = !processes[i].is_reaped && static_cast<int>(i) != options.stopped_rank;
    end_rank(processes[i], ends[i]);
    while (processes[i].output >= 0) read_output(processes[i], ends[i]);
  }
  return ends;
}

void expect_ok(const std::vector<RankEnd>& ends, int except) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (static_cast<int>(rank) == except) continue;
    EXPECT_TRUE(ends[rank].is_ok())
        << "rank " << rank << (ends[rank].is_late ? " did not finish" : " ended") << " with status "
        << ends[rank].status << ":\n"
        << ends[rank].output;
  }
}

}  // namespace ivy::comm::test
