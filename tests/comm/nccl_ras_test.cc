// SPDX-License-Identifier: Apache-2.0
// Reports of NCCL's health service: queried over real sockets on loopback, shortened, and included
// in timeouts inside NCCL (with the test doubles, which serve it).
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "comm/nccl/ras.h"
#include "proto/os/listening_socket.h"
#include "proto/wire/ras.h"
#include "rendezvous/server/server.h"
#include "tests/comm/device.h"
#include "tests/comm/nccl_doubles.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

using nccl::kRasTimeout;
using nccl::query_ras;
using std::chrono::steady_clock;

constexpr const char* kQuestion = "CLIENT PROTOCOL 2\nTIMEOUT 2\nVERBOSE STATUS\n";
const std::string kPreface = "SERVER PROTOCOL 2\nOK\n";

// Reports a failure once is_over is set.
class FakeFailureSource final : public nccl::FailureSource {
 public:
  MaybeFailure find_failure() override {
    if (!is_over) return std::nullopt;
    return make_failure(FailureKind::kAborted, "over");
  }
  std::atomic<bool> is_over{false};
};
FakeFailureSource never;

// Serves its connections one after the other with `serve`, numbered from 0. When that returns, the
// connection is closed.
class Service {
 public:
  using Serve = std::function<void(int number, int socket)>;
  explicit Service(Serve serve)
      : listening_(listen_tcp("127.0.0.1", 0).value()),
        address_(store::address_of(listening_)),
        thread_([this, serve = std::move(serve)] {
          for (int number = 0;; ++number) {
            const int socket = accept_one();
            if (socket < 0) return;
            serve(number, socket);
            close(socket);
          }
        }) {}
  ~Service() {
    is_ending_ = true;
    thread_.join();
    close(listening_);
  }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  const std::string& address() const { return address_; }
  bool is_ending() const { return is_ending_; }

 private:
  int accept_one() {
    while (!is_ending_) {
      const int socket = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket >= 0) return socket;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return -1;
  }

  std::atomic<bool> is_ending_{false};
  const int listening_;
  const std::string address_;
  std::thread thread_;
};

// Returns `bytes` bytes, or fewer at the end of the stream.
std::string read_bytes(int socket, std::size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t count = recv(socket, text.data(), bytes, MSG_WAITALL);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

void send_text(int socket, const std::string& text) {
  static_cast<void>(!send(socket, text.data(), text.size(), MSG_NOSIGNAL));
}

void wait_for_its_end(int socket) {
  char byte = 0;
  while (recv(socket, &byte, 1, 0) > 0) {
  }
}

TEST(RasTest, SendsTheQueryAndReadsTheAnswerAfterTheGreeting) {
  std::string question;
  const Service service([&](int, int socket) {
    question = read_bytes(socket, std::string(kQuestion).size());
    send_text(socket, kPreface + "NCCL version 2.30.7\n\nJob ");
    std::this_thread::sleep_for(milliseconds(50));
    send_text(socket, "summary\nevil \033[2J\n");
  });
  EXPECT_EQ(query_ras(service.address(), scaled_time(kRasTimeout), never),
            "NCCL version 2.30.7\n\nJob summary\nevil ?[2J\n");
  EXPECT_EQ(question, kQuestion);
  const std::string port = service.address().substr(service.address().rfind(':'));
  EXPECT_NE(query_ras("localhost" + port, scaled_time(kRasTimeout), never), "");
}

// All processes of a host listen at one address. The kernel may give the connection to a stopped
// one.
TEST(RasTest, TriesTheNextServiceIfOneIsSilent) {
  const Service service([](int number, int socket) {
    if (number == 0) return wait_for_its_end(socket);
    read_bytes(socket, std::string(kQuestion).size());
    send_text(socket, kPreface + "from another\n");
  });
  EXPECT_EQ(query_ras(service.address(), scaled_time(kRasTimeout), never), "from another\n");
}

TEST(RasTest, BoundsAnEndlessAnswer) {
  std::atomic<int> asked{0};
  Service service([&](int, int socket) {
    ++asked;
    send_text(socket, kPreface);
    if (asked == 1) {
      send_text(socket, "a line that is there\n");
      return wait_for_its_end(socket);
    }
    const std::string line = std::string(999, 'x') + "\n";
    for (int i = 0; i < 1000; ++i) send_text(socket, line);
  });
  const auto began = steady_clock::now();
  EXPECT_EQ(query_ras(service.address(), milliseconds(300), never), "a line that is there\n");
  EXPECT_LT(steady_clock::now() - began, milliseconds(300) + scaled_time(milliseconds(300)));
  EXPECT_LE(query_ras(service.address(), scaled_time(kRasTimeout), never).size(),
            RasQuestion::kMaxBytes);
  EXPECT_EQ(asked, 2);
}

TEST(RasTest, ReturnsImmediatelyWithoutAUsableService) {
  const auto began = steady_clock::now();
  EXPECT_EQ(query_ras("127.0.0.1:1", scaled_time(kRasTimeout), never), "");
  EXPECT_EQ(query_ras("some.name:28028", scaled_time(kRasTimeout), never), "");
  EXPECT_EQ(query_ras("no address", scaled_time(kRasTimeout), never), "");
  EXPECT_EQ(query_ras("127.0.0.1:x", scaled_time(kRasTimeout), never), "");
  const Service web([](int, int socket) { send_text(socket, "HTTP/1.1 400 Bad Request\r\n\r\n"); });
  EXPECT_EQ(query_ras(web.address(), scaled_time(kRasTimeout), never), "");
  FakeFailureSource failing;
  const Service silent([&](int, int socket) {
    failing.is_over = true;
    wait_for_its_end(socket);
  });
  EXPECT_EQ(query_ras(silent.address(), scaled_time(kRasTimeout), failing), "");
  EXPECT_LT(steady_clock::now() - began, scaled_time(milliseconds(900)));
}

// An answer from NCCL's guide.
const std::string kAnswer =
    "NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n\n"
    "  Nodes  Processes         GPUs\n\nCommunicators... (2.05s)\n=============\n\n"
    "Group     Comms    Status  Errors\n    0         1   RUNNING  INCOMPLETE\n\n"
    "Errors\n======\n\nINCOMPLETE\n  Missing communicator data from 1 job process\n"
    "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n"
    "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n\n"
    "Warnings\n========\n\nTIMEOUT\n  Encountered 2 communication timeouts\n\n";

TEST(RasTest, SummarizesErrorsAndWarningsInOneLine) {
  EXPECT_EQ(
      summary_of_ras(kAnswer, 1000),
      "INCOMPLETE: Missing communicator data from 1 job process, Process 3487984 on node "
      "172.16.64.213 managing GPU 5, #0-0 (cf264af53edbe986) INCOMPLETE: Missing communicator "
      "data from 1 rank, TIMEOUT: Encountered 2 communication timeouts");
  EXPECT_EQ(summary_of_ras(kAnswer, 10), "INCOMPLETE");
  EXPECT_EQ(summary_of_ras("Job\n\nErrors\n======\n\nWarnings\n========\n\n", 99), "no error");
  EXPECT_EQ(summary_of_ras("Job summary\n", 99), "no answer in time");
  EXPECT_EQ(summary_of_ras("", 99), "no answer in time");
}

TEST(RasTest, LimitsTheLinesOfAReport) {
  const std::string report = nccl::report_of_ras(kAnswer, "world");
  EXPECT_TRUE(report.starts_with("ivycomm: communicator world makes no progress; NCCL's "))
      << report;
  EXPECT_NE(report.find("\n      0         1   RUNNING  INCOMPLETE\n"), std::string::npos);
  EXPECT_EQ(report.find("\n\n"), std::string::npos) << report;
  std::string endless;
  for (int i = 0; i < 1000; ++i) endless += "rank " + std::to_string(i) + "\n";
  const std::string cut = nccl::report_of_ras(endless, "world");
  EXPECT_EQ(std::count(cut.begin(), cut.end(), '\n'), 62);
  EXPECT_NE(cut.find("ncclras -v"), std::string::npos) << cut;
}

// ---- In a communicator's failure ----------------------------------------------------------------

// Returns a loopback address that no other test uses at this time. The test double listens there.
std::string own_address() {
  const auto pid = static_cast<unsigned>(getpid());
  return "127." + std::to_string(1 + pid / 250 % 250) + "." + std::to_string(1 + pid % 250) +
         ".9:28028";
}

struct Reported {
  std::atomic<int> questions{0};
};

// Every rank fails with `fail` at a timeout. All have the answer, but only one has sent the query.
void expect_reported(const Hosts& hosts, const std::string& script, const std::string& what,
                     const std::function<int(ivy_comm*, int)>& fail) {
  char folder[] = "/tmp/ivy-nccl-test-XXXXXX";  // For unused ids.
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string address = own_address();
  const Shared<Reported> reported;
  const std::vector<RankEnd> ends = run_world(hosts, [&](int rank) {
    use_doubles(kNccl, script);
    setenv("NCCL_DOUBLE_DIR", folder, 1);
    setenv("NCCL_RAS_ADDR", address.c_str(), 1);
    World world(seconds(20));
    if (!world) return;
    EXPECT_EQ(fail(world, rank), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    const std::string text = ivy_last_error();
    for (const std::string& part :
         {what, std::string("; NCCL's health service says: #0-0 (27a079b828ff1a75) MISMATCH: "),
          std::string(" has status ")}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    reported->questions += calls_of("ras");
  });
  expect_ok(ends);
  EXPECT_EQ(reported->questions, 1);
  int reports = 0;
  for (const RankEnd& end : ends)
    reports += end.output.find("makes no progress; NCCL's health service (RAS) says:\n") !=
               std::string::npos;
  EXPECT_EQ(reports, 1);
  std::filesystem::remove_all(folder);
}

TEST(NcclTest, ReportsAHangingInitWithTheHealthServicesAnswer) {
  for (const Hosts& hosts : {one_host(1), one_host(3), Hosts{2, 1}}) {
    SCOPED_TRACE(hosts_text(hosts));
    expect_reported(hosts, "hang_init", "init timed out: not finished after",
                    [](ivy_comm* world, int rank) {
                      const ivy_call how = call_with_timeout(seconds(1));
                      return ivy_prepare_device(world, rank, &how);
                    });
  }
}

// Blocks the stream. With `is_enqueued`, the thread that watches the stream detects it.
int fail_on_stream(ivy_comm* world, int rank, bool is_enqueued) {
  Device device(kCuda, rank);
  EXPECT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
  const DeviceArray on(device, floats(100, 1));
  ivy_call how = call_with_timeout(milliseconds(300));
  how.stream = device.make_stream();
  how.flags = is_enqueued ? IVY_ENQUEUE : 0;
  device.block(how.stream, milliseconds(1'500));
  int code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 100, IVY_F32, IVY_SUM, &how);
  if (is_enqueued) {
    EXPECT_EQ(code, IVY_OK) << ivy_last_error();
    device.synchronize(how.stream);
    code = ivy_barrier(world, nullptr);
  }
  return code;
}

TEST(NcclTest, ReportsAHangingOperationWithTheHealthServicesAnswer) {
  for (const bool is_enqueued : {false, true}) {
    expect_reported(one_host(2), "", "not finished on the device ", [&](ivy_comm* world, int rank) {
      return fail_on_stream(world, rank, is_enqueued);
    });
  }
}

TEST(NcclTest, DoesNotQueryAMissingHealthService) {
  const std::string address = own_address();
  for (const char* const script : {"hang_init,version=22304", "hang_init"}) {
    char folder[] = "/tmp/ivy-nccl-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles(kNccl, script);
      setenv("NCCL_DOUBLE_DIR", folder, 1);
      if (std::string(script) != "hang_init") setenv("NCCL_RAS_ADDR", address.c_str(), 1);
      World world(seconds(20));
      if (!world) return;
      const ivy_call how = call_with_timeout(seconds(1));
      EXPECT_EQ(ivy_prepare_device(world, rank, &how), IVY_DEADLINE_EXCEEDED);
      EXPECT_EQ(std::string(ivy_last_error()).find("health service"), std::string::npos)
          << ivy_last_error();
      EXPECT_EQ(calls_of("ras"), 0);
    }));
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace ivy::comm::test
