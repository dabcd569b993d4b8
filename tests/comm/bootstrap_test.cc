// SPDX-License-Identifier: Apache-2.0
// How ranks find each other without ivyrun: the endpoint, its file, torchrun's store, and complete
// bootstraps of processes.
#include "comm/join/bootstrap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "comm/join/endpoint.h"
#include "comm/join/torch_store.h"
#include "tests/comm/world.h"
#include "tests/rendezvous/server_thread.h"
#include "tests/support/leak_guard.h"

namespace ivy::comm::test {
namespace {

using ivy::test::LeakGuard;
using ivy::test::ServerThread;
using std::chrono::steady_clock;

Endpoint some_endpoint() {
  Endpoint endpoint;
  endpoint.job_id = "00112233445566778899aabbccddeeff";
  endpoint.token = std::string("\0\n \xff token", 10);
  endpoint.generation = 7;
  endpoint.addresses = {"10.0.0.1:4123", "[fd00::1]:4123"};
  return endpoint;
}

TEST(EndpointTest, SurvivesARoundTripOrIsRejected) {
  const Endpoint endpoint = some_endpoint();
  const std::string text = encode_endpoint(endpoint);
  EXPECT_EQ(decode_endpoint(text).value(), endpoint);
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(decode_endpoint(text.substr(0, length)).ok()) << length;
  }
  // A flipped bit gives another endpoint or an error, never a crash.
  for (std::size_t i = 0; i < text.size() * 8; ++i) {
    std::string flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << i % 8));
    const Result<Endpoint> decoded = decode_endpoint(flipped);
    if (decoded.ok()) {
      EXPECT_EQ(decoded->job_id.size(), 32U);
    }
  }
  EXPECT_FALSE(decode_endpoint(text + "end\n").ok());
  EXPECT_FALSE(decode_endpoint(text + std::string(kEndpointBytesMax, 'x')).ok());
}

class NoteFileTest : public ::testing::Test {
 protected:
  NoteFileTest() {
    char name[] = "/tmp/ivy-comm-test-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~NoteFileTest() override {
    unlink(path().c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << "files remain in " << directory_;
  }
  std::string path() const { return directory_ + "/endpoint"; }

 private:
  std::string directory_;
};

TEST_F(NoteFileTest, IsWrittenAtomicallyAndRemovedWithItsWriter) {
  const LeakGuard guard;
  EXPECT_EQ(read_endpoint(path()).error().code, Code::kNotFound);
  {
    const auto file = EndpointFile::write(path(), some_endpoint());
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(read_endpoint(path()).value(), some_endpoint());
    struct stat status = {};
    ASSERT_EQ(stat(path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
  }
  EXPECT_EQ(read_endpoint(path()).error().code, Code::kNotFound);
}

TEST_F(NoteFileTest, KeepsANoteThatReplacedItsOwn) {
  auto first = EndpointFile::write(path(), some_endpoint());
  Endpoint other = some_endpoint();
  other.generation = 8;
  const auto second = EndpointFile::write(path(), other);
  ASSERT_TRUE(first.ok() && second.ok());
  (*first)->remove();
  EXPECT_EQ(read_endpoint(path()).value(), other);
}

TEST_F(NoteFileTest, RejectsFilesThatOthersCanWrite) {
  std::ofstream(path()) << encode_endpoint(some_endpoint());
  chmod(path().c_str(), 0644);
  EXPECT_EQ(read_endpoint(path()).error().code, Code::kPermissionDenied);
  chmod(path().c_str(), 0600);
  EXPECT_TRUE(read_endpoint(path()).ok());
  unlink(path().c_str());
  ASSERT_EQ(symlink("/etc/passwd", path().c_str()), 0);
  EXPECT_EQ(read_endpoint(path()).error().code, Code::kPermissionDenied);
}

// ---- torchrun's store --------------------------------------------------------------------------

class TorchStoreTest : public ::testing::TestWithParam<TorchDialect> {};
INSTANTIATE_TEST_SUITE_P(Dialects, TorchStoreTest,
                         ::testing::Values(TorchDialect::kOld, TorchDialect::kNew));

TEST_P(TorchStoreTest, WaitsForAValueAndReadsIt) {
  const LeakGuard guard;
  ServerThread server;
  const auto end = steady_clock::now() + scaled_time(seconds(10));
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    const auto store = TorchStore::connect("127.0.0.1", server.torch_port, GetParam(), end);
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_TRUE((*store)->set("ivycomm/a", std::string("value\0!", 7), end).ok());
  });
  const auto store = TorchStore::connect("localhost", server.torch_port, GetParam(), end);
  EXPECT_TRUE(store.ok()) << store.error().message;
  if (store.ok()) {
    const Result<std::string> value = (*store)->wait_get("ivycomm/a", end);
    EXPECT_EQ(value.ok() ? *value : value.error().message, std::string("value\0!", 7));
    const auto soon = steady_clock::now() + milliseconds(100);
    EXPECT_EQ((*store)->wait_get("ivycomm/never", soon).error().code, Code::kDeadlineExceeded);
  }
  writer.join();
}

TEST(TorchStoreProbeTest, RejectsAServerThatHangsUpOrIsSilent) {
  const LeakGuard guard;
  const int silent = listen_tcp("127.0.0.1", 0).value();
  const auto end = steady_clock::now() + milliseconds(300);
  const auto store =
      TorchStore::connect("127.0.0.1", ivy::test::port_of(silent), TorchDialect::kUnknown, end);
  EXPECT_FALSE(store.ok());
  close(silent);
}

// ---- Complete bootstraps ------------------------------------------------------------------------

Result<Identity> identity_for(const std::string& method, std::uint32_t rank, std::uint32_t size) {
  IdentityRequest request;
  request.init_method = method;
  request.rank = rank;
  request.world_size = size;
  return identify(request, [](std::string_view) { return std::nullopt; });
}

std::string free_address() {
  const int socket = listen_tcp("127.0.0.1", 0).value();
  const std::string address = store::address_of(socket);
  close(socket);
  return address;
}

TEST(MeetTest, NamesAMissingRankZero) {
  const LeakGuard guard;
  const std::string address = free_address();
  const Identity identity = identity_for("tcp://" + address, 1, 2).value();
  const Result<Bootstrapped> met = bootstrap(identity, 0, milliseconds(300));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(met.error().message.find("rank 0 has not opened " + address + " within 0.3 s"),
            std::string::npos)
      << met.error().message;
}

TEST(MeetTest, NamesAPortInUse) {
  const LeakGuard guard;
  const int taken = listen_tcp("127.0.0.1", 0).value();
  const std::string address = store::address_of(taken);
  const Result<Bootstrapped> met =
      bootstrap(identity_for("tcp://" + address, 0, 2).value(), 0, seconds(1));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code, Code::kAlreadyExists);
  EXPECT_NE(met.error().message.find("cannot open " + address), std::string::npos)
      << met.error().message;
  close(taken);
}

TEST(MeetTest, RejectsALongTokenFileOnEveryRank) {
  char path[] = "/tmp/ivy-comm-test-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 4097), 0);
  close(file);
  for (const std::uint32_t rank : {0u, 1u}) {
    Identity identity = identity_for("tcp://" + free_address(), rank, 2).value();
    identity.token_file = path;
    const Result<Bootstrapped> met = bootstrap(identity, 0, milliseconds(300));
    ASSERT_FALSE(met.ok()) << rank;
    EXPECT_EQ(met.error().code, Code::kInvalidArgument) << met.error().message;
    EXPECT_NE(met.error().message.find("has more than 4096 bytes"), std::string::npos)
        << met.error().message;
  }
  unlink(path);
}

// Returns the error of rank 0 in a network namespace whose ephemeral range is the derived port and
// where a connection uses that port. Returns an empty string if no such namespace can be created.
std::string ephemeral_port_error(const Identity& identity) {
  int printed[2];
  EXPECT_EQ(pipe(printed), 0);
  const pid_t child = fork();
  if (child == 0) {
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    if (unshare(CLONE_NEWNET) != 0) _exit(0);
    if (ioctl(::socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &loopback) != 0) _exit(0);
    const std::string port = std::to_string(identity.bootstrap_port);
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << port << " " << port;
    IVY_ASSERT(listen_tcp("127.0.0.1", 9).ok());
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(9);
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int connected = ::socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connected, reinterpret_cast<sockaddr*>(&peer), sizeof peer) != 0) _exit(0);
    const Result<Bootstrapped> met = bootstrap(identity, 0, seconds(1));
    const std::string text = met.ok() ? "it met" : met.error().message + "; " + met.error().fix;
    _exit(write(printed[1], text.data(), text.size()) < 0);
  }
  close(printed[1]);
  std::string text(4096, '\0');
  const ssize_t count = read(printed[0], text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  close(printed[0]);
  waitpid(child, nullptr, 0);
  return text;
}

TEST(MeetTest, ExplainsADerivedPortInUse) {
  Identity identity;
  identity.rank = 0;
  identity.world_size = 2;
  identity.bootstrap = Bootstrap::kAddress;
  identity.bootstrap_host = "127.0.0.1";
  identity.bootstrap_key = "slurm 7.0";
  identity.bootstrap_port = port_by(identity.bootstrap_key + " at 29500");
  const std::string port = std::to_string(identity.bootstrap_port);
  const int taken = listen_tcp("127.0.0.1", identity.bootstrap_port).value();
  const Result<Bootstrapped> met = bootstrap(identity, 0, seconds(1));
  close(taken);
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code, Code::kAlreadyExists);
  EXPECT_NE(met.error().fix.find("another MASTER_PORT"), std::string::npos) << met.error().fix;
  EXPECT_EQ(met.error().fix.find("ip_local_port_range"), std::string::npos) << met.error().fix;
  const std::string printed = ephemeral_port_error(identity);
  if (printed.empty()) GTEST_SKIP() << "no network namespace can be created";
  EXPECT_NE(printed.find("cannot open 127.0.0.1:" + port), std::string::npos) << printed;
  EXPECT_NE(printed.find("ip_local_port_range is " + port + "-" + port), std::string::npos)
      << printed;
}

// Bootstraps in threads of one process; no world is created.
TEST(MeetTest, ConnectsToRankZeroAndStopsTheStoreWithTheLastRank) {
  const std::string method = "tcp://" + free_address();
  Result<Bootstrapped> second = Error{Code::kInternal, "not met"};
  std::thread other(
      [&] { second = bootstrap(identity_for(method, 1, 2).value(), 0, scaled_time(seconds(20))); });
  Result<Bootstrapped> first =
      bootstrap(identity_for(method, 0, 2).value(), 0, scaled_time(seconds(20)));
  other.join();
  ASSERT_TRUE(first.ok()) << first.error().message;
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_EQ(second->first_host_address, first->first_host_address);
  EXPECT_EQ(second->private_store, nullptr);

  // Rank 0 leaves. The store keeps serving rank 1 and accepts no other client.
  first->client.reset();
  first->private_store.reset();
  EXPECT_TRUE(second->client->set("still", "here").ok());
  const Result<Bootstrapped> late =
      bootstrap(identity_for(method, 1, 2).value(), 0, milliseconds(300));
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded) << late.error().message;
  EXPECT_TRUE(second->client->get("still").ok());
}

TEST(MeetTest, RejectsADuplicateRank) {
  const std::string method = "tcp://" + free_address();
  const Result<Bootstrapped> first =
      bootstrap(identity_for(method, 0, 2).value(), 0, scaled_time(seconds(20)));
  ASSERT_TRUE(first.ok()) << first.error().message;
  const pid_t child = fork();
  if (child == 0) {
    const Result<Bootstrapped> other =
        bootstrap(identity_for(method, 1, 2).value(), 0, scaled_time(seconds(20)));
    _exit(other.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const Result<Bootstrapped> second =
      bootstrap(identity_for(method, 1, 2).value(), 0, scaled_time(seconds(20)));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_NE(second.error().message.find("process " + std::to_string(child)), std::string::npos)
      << second.error().message;
}

TEST(MeetTest, RejectsAnotherWorldSize) {
  const std::string method = "tcp://" + free_address();
  const Result<Bootstrapped> first =
      bootstrap(identity_for(method, 0, 2).value(), 0, scaled_time(seconds(20)));
  ASSERT_TRUE(first.ok()) << first.error().message;
  const Result<Bootstrapped> second =
      bootstrap(identity_for(method, 1, 3).value(), 0, scaled_time(seconds(20)));
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("rank 0 has a world size of 2"), std::string::npos);
  EXPECT_NE(second.error().message.find("rank 1 has 3"), std::string::npos)
      << second.error().message;
}

// Two jobs may derive the same of 12,000 ports from their names.
TEST(MeetTest, SeparatesTwoJobsWithTheSameDerivedPort) {
  const std::string method = "tcp://" + free_address();
  Identity first = identity_for(method, 0, 2).value();
  Identity second = identity_for(method, 1, 2).value();
  first.bootstrap_key = "slurm 17.0 0";
  second.bootstrap_key = "slurm 18.0 0";
  const Result<Bootstrapped> here = bootstrap(first, 0, scaled_time(seconds(20)));
  ASSERT_TRUE(here.ok()) << here.error().message;
  const Result<Bootstrapped> there = bootstrap(second, 0, scaled_time(seconds(5)));
  ASSERT_FALSE(there.ok());
  EXPECT_EQ(there.error().code, Code::kUnauthenticated) << there.error().message;
  second.bootstrap_key = first.bootstrap_key;
  EXPECT_TRUE(bootstrap(second, 0, scaled_time(seconds(20))).ok());
}

// The common prefix of the ids of all jobs without a secret.
constexpr const char* kNoSecret = "no secret was given to this job";
constexpr const char* kPublicJob = "6976792d706c61696e2d7463702d6a6f";

TEST(MeetTest, GivesRanksASecretToken) {
  std::vector<std::string> tokens;
  for (int job = 0; job < 2; ++job) {
    const std::string method = "tcp://" + free_address();
    Result<Bootstrapped> second = Error{Code::kInternal, "not met"};
    std::thread other([&] {
      second = bootstrap(identity_for(method, 1, 2).value(), 0, scaled_time(seconds(20)));
    });
    const Result<Bootstrapped> first =
        bootstrap(identity_for(method, 0, 2).value(), 0, scaled_time(seconds(20)));
    other.join();
    ASSERT_TRUE(first.ok()) << first.error().message;
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_EQ(first->token, second->token);
    EXPECT_EQ(first->job_id, second->job_id);
    EXPECT_EQ(first->job_id.size(), 32U);
    EXPECT_NE(first->token, kNoSecret);
    tokens.push_back(first->token + first->job_id);
  }
  EXPECT_NE(tokens[0], tokens[1]);
}

struct Complete {
  std::atomic<int> met{0};
  std::atomic<bool> is_over{false};
};

int run_rank_of(const std::string& method, int rank, Complete& board) {
  ivy_options options = {};
  options.struct_bytes = sizeof options;
  options.init_method = method.c_str();
  options.rank = rank;
  options.world_size = 2;
  options.timeout_ms = scaled_time(seconds(20)).count();
  ivy_comm* world = nullptr;
  if (ivy_init(&options, &world) != IVY_OK) return 2;
  ++board.met;
  const bool is_over = ivy::test::eventually([&] { return board.is_over.load(); }, seconds(20));
  const int code = ivy_barrier(world, nullptr);
  return ivy_finalize(world) == IVY_OK && code == IVY_OK && is_over ? 0 : 3;
}

TEST(MeetTest, RejectsProcessesAfterAllRanksHaveJoined) {
  const LeakGuard guard;
  const std::string address = free_address();
  Shared<Complete> board;
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1}) {
    ranks.push_back(fork());
    if (ranks.back() == 0) _exit(run_rank_of("tcp://" + address, rank, *board));
  }
  EXPECT_TRUE(ivy::test::eventually([&] { return board->met == 2; }, seconds(20)));
  store::ClientOptions outsider;
  outsider.address = address;
  outsider.job_id = kPublicJob;
  outsider.token = kNoSecret;
  outsider.rank = 1;
  outsider.connect_timeout = scaled_time(seconds(2));
  outsider.may_redial = false;
  const auto client = store::Client::connect(outsider);
  EXPECT_FALSE(client.ok());
  // A rank that arrives later gets the reason.
  const Result<Bootstrapped> late =
      bootstrap(identity_for("tcp://" + address, 1, 2).value(), 0, scaled_time(seconds(2)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, Code::kAlreadyExists) << late.error().message;
  EXPECT_NE(late.error().message.find("have already joined"), std::string::npos)
      << late.error().message;
  board->is_over = true;
  for (const pid_t rank : ranks) {
    int status = 0;
    ASSERT_EQ(waitpid(rank, &status, 0), rank);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace ivy::comm::test
