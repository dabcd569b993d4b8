// A server for many jobs: who gets in, what a job sees of another, and what is left of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "proto/contract/build.h"
#include "rendezvous/client/client.h"
#include "tests/rendezvous/server_thread.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::RawSocket;
using test::stretched;

std::string job(int number) {
  std::string id = std::to_string(number);
  return std::string(32 - id.size(), 'a') + id;
}
std::string token(int number) {
  return std::string(31, 'T') + static_cast<char>('0' + number % 64);
}

class JobServerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ivy-jobs-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    std::filesystem::create_directory(directory_ + "/tokens");
    std::filesystem::permissions(directory_ + "/tokens", std::filesystem::perms::owner_all);
  }
  void TearDown() override {
    end(SIGTERM);
    std::filesystem::remove_all(directory_);
  }

  void admit(int number, mode_t mode = 0400) {
    const std::string path = directory_ + "/tokens/" + job(number);
    // Beside it first, so that nobody finds half of it.
    std::ofstream(path + ".part", std::ios::binary) << token(number);
    ASSERT_EQ(chmod((path + ".part").c_str(), mode), 0);
    std::filesystem::rename(path + ".part", path);
  }
  void dismiss(int number) { std::filesystem::remove(directory_ + "/tokens/" + job(number)); }

  void start(std::vector<std::string> more = {}, const std::string& at = "127.0.0.1:0") {
    std::vector<std::string> words = {RENDEZVOUS_PATH,        "serve",    "--tokens",
                                      directory_ + "/tokens", "--listen", at};
    words.insert(words.end(), more.begin(), more.end());
    const int out =
        ::open((directory_ + "/out").c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    server_ = fork();
    if (server_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      std::vector<char*> pointers;
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      execv(RENDEZVOUS_PATH, pointers.data());
      _exit(127);
    }
    ::close(out);
    ASSERT_TRUE(eventually([&] { return said().find("ready\n") != std::string::npos; })) << said();
    const std::string lead = "listening on ";
    const std::string text = said();
    address_ = text.substr(text.find(lead) + lead.size());
    address_ = address_.substr(0, address_.find('\n'));
  }
  int end(int signal) {
    if (server_ <= 0) return 0;
    kill(server_, signal);
    int status = 0;
    waitpid(std::exchange(server_, 0), &status, 0);
    return status;
  }
  std::string said() const {
    std::ifstream file(directory_ + "/out", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  std::uint16_t port() const {
    return static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
  }
  std::set<pid_t> job_processes() const {
    std::set<pid_t> pids;
    const std::string path =
        "/proc/" + std::to_string(server_) + "/task/" + std::to_string(server_);
    std::ifstream children(path + "/children");
    for (pid_t pid = 0; children >> pid;) pids.insert(pid);
    return pids;
  }
  ClientOptions options(int number) const {
    ClientOptions options;
    options.address = address_;
    options.job_id = job(number);
    options.token = token(number);
    options.connect_timeout = stretched(10s);
    options.request_timeout = stretched(20s);
    return options;
  }
  std::unique_ptr<Client> client(int number) const {
    Result<std::unique_ptr<Client>> made = Client::connect(options(number));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message) << said();
    return made.ok() ? std::move(*made) : nullptr;
  }

  std::string directory_;
  std::string address_;
  pid_t server_ = 0;
};

TEST(RendezvousTest, SaysItsVersion) {
  for (const char* option : {" --version", " -V"}) {
    FILE* const said = popen((std::string(RENDEZVOUS_PATH) + option).c_str(), "re");
    ASSERT_NE(said, nullptr);
    std::array<char, 256> text{};
    EXPECT_NE(std::fgets(text.data(), text.size(), said), nullptr);
    EXPECT_EQ(pclose(said), 0);
    EXPECT_EQ(text.data(), "ivy-rendezvous " + std::string(version()) + "\n");
  }
}

TEST_F(JobServerTest, JobsDoNotSeeEachOther) {
  admit(1);
  admit(2);
  start();
  const auto one = client(1);
  const auto two = client(2);
  ASSERT_TRUE(one->set("key", "of one").ok());
  EXPECT_EQ(two->get("key").error().code, Code::kNotFound);
  ASSERT_TRUE(two->set("key", "of two").ok());
  EXPECT_EQ(*one->get("key"), "of one");
  EXPECT_EQ(*client(1)->get("key"), "of one") << "every client of a job has the same store";
  EXPECT_EQ(*two->count(""), 1u);
  EXPECT_EQ(two->why()->find("of one"), std::string::npos);
  EXPECT_EQ(job_processes().size(), 2u);
}

TEST_F(JobServerTest, OnlyAJobsOwnTokenOpensIt) {
  admit(1);
  admit(2);
  admit(3, 0440);
  start();
  const auto refused = [&](int id, const std::string& secret) {
    ClientOptions wanted = options(id);
    wanted.token = secret;
    wanted.connect_timeout = stretched(2s);
    const auto made = Client::connect(wanted);
    return made.ok() ? Code::kInternal : made.error().code;
  };
  EXPECT_EQ(refused(1, std::string(32, 'x')), Code::kUnauthenticated);
  EXPECT_EQ(refused(1, token(2)), Code::kUnauthenticated) << "another job's";
  EXPECT_EQ(refused(9, token(9)), Code::kUnauthenticated) << "no such job";
  EXPECT_EQ(refused(3, token(3)), Code::kUnauthenticated) << "its file can be read by others";
  EXPECT_NE(said().find("can be read by others"), std::string::npos) << said();
  EXPECT_EQ(said().find(token(1)), std::string::npos);
  EXPECT_EQ(*client(1)->count(""), 0u);
}

// A job that comes and goes while the server runs.
TEST_F(JobServerTest, TokenFilesAreReadAsTheyCome) {
  start();
  ClientOptions early = options(1);
  early.connect_timeout = 500ms;
  EXPECT_FALSE(Client::connect(early).ok());
  admit(1);
  auto first = client(1);
  ASSERT_TRUE(first->set("k", "v").ok());
  dismiss(1);
  EXPECT_TRUE(eventually([&] { return job_processes().empty(); })) << said();
  EXPECT_FALSE(Client::connect(early).ok());
  admit(1);
  EXPECT_EQ(client(1)->get("k").error().code, Code::kNotFound) << "nothing is kept of it";
  EXPECT_EQ(first->get("k").error().code, Code::kAborted) << "and its client is told so";
}

TEST_F(JobServerTest, AReplayedHandshakeIsRefused) {
  admit(1);
  start();
  HandshakeHello hello;
  hello.purpose = "store";
  hello.job_id = job(1);
  hello.nonce = random_bytes(kNonceBytes);
  const std::string greeting = encode_hello(hello);
  std::string proof;
  {
    const RawSocket honest(port());
    honest.send(greeting);
    const std::string challenge = honest.receive(kChallengeBytes);
    ASSERT_EQ(challenge.size(), kChallengeBytes);
    proof = make_proof(greeting, challenge, token(1));
    honest.send(proof);
    EXPECT_EQ(honest.receive(9).size(), 9u) << "welcome";
  }
  const RawSocket replay(port());
  replay.send(greeting + proof);
  EXPECT_EQ(replay.receive(kChallengeBytes).size(), kChallengeBytes);
  EXPECT_TRUE(replay.is_hung_up());
  EXPECT_EQ(*client(1)->count(""), 0u);
}

TEST_F(JobServerTest, StrangersAreShownOutAndNobodyElseNotices) {
  admit(1);
  start();
  const auto friendly = client(1);
  const RawSocket scanner(port());
  scanner.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(scanner.is_hung_up(2s));
  const RawSocket older(port());
  older.send(std::string("IVYS\1\0store", 11));
  EXPECT_TRUE(older.is_hung_up(2s));
  EXPECT_NE(said().find("version 1 of the handshake"), std::string::npos) << said();
  const RawSocket slow(port());
  slow.send("IV");
  const RawSocket silent(port());
  ASSERT_TRUE(friendly->set("k", "v").ok());
  EXPECT_TRUE(slow.is_hung_up(10s)) << "5 s for a greeting";
  EXPECT_TRUE(silent.is_hung_up(5s));
  EXPECT_EQ(*friendly->get("k"), "v");
}

TEST_F(JobServerTest, TwoHundredJobs) {
  constexpr int kJobs = 200;
  for (int i = 0; i < kJobs; ++i) admit(i);
  start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kJobs; ++i) {
    clients.push_back(client(i));
    ASSERT_NE(clients.back(), nullptr) << i;
    ASSERT_TRUE(clients.back()->set("mine", std::to_string(i)).ok()) << i;
  }
  for (int i = 0; i < kJobs; ++i) {
    EXPECT_EQ(*clients[i]->get("mine"), std::to_string(i));
    EXPECT_EQ(*clients[i]->count(""), 1u);
  }
  EXPECT_EQ(job_processes().size(), static_cast<std::size_t>(kJobs));
}

TEST_F(JobServerTest, MoreJobsThanAllowedAreRefused) {
  for (int i = 0; i < 3; ++i) admit(i);
  start({"--max-jobs", "2"});
  const auto one = client(0);
  const auto two = client(1);
  ClientOptions third = options(2);
  third.connect_timeout = stretched(1s);
  EXPECT_FALSE(Client::connect(third).ok());
  EXPECT_NE(said().find("there are 2 jobs already"), std::string::npos) << said();
  EXPECT_TRUE(one->set("k", "v").ok());
  dismiss(0);
  EXPECT_TRUE(eventually([&] { return job_processes().size() == 1; }));
  EXPECT_NE(client(2), nullptr);
}

// A job that takes all it can: memory, connections, time. Another one's requests are served.
TEST_F(JobServerTest, AHostileJobCostsOnlyItself) {
  admit(1);
  admit(2);
  start({"--job-memory", "96", "--job-connections", "64"});
  const auto honest = client(2);
  ASSERT_TRUE(honest->set("k", "v").ok());
  std::atomic<bool> stop = false;
  std::vector<std::thread> hostile;
  std::atomic<int> full = 0;
  for (int thread = 0; thread < 4; ++thread) {
    hostile.emplace_back([&, thread] {
      const std::string value(4u << 20, 'x');
      while (!stop) {
        ClientOptions wanted = options(1);
        wanted.connect_timeout = 1s;
        const auto made = Client::connect(wanted);
        if (!made.ok()) continue;
        for (int i = 0; i < 64 && !stop; ++i) {
          const auto set = (*made)->set(std::to_string(thread) + "/" + std::to_string(i), value);
          if (!set.ok() && set.error().code == Code::kResourceExhausted) full += 1;
          if (!set.ok()) break;
        }
      }
    });
  }
  std::vector<std::unique_ptr<RawSocket>> many;
  for (int i = 0; i < 200; ++i) many.push_back(std::make_unique<RawSocket>(port()));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(honest->set("k", std::to_string(i)).ok()) << i;
    const Result<std::string> got = honest->get("k");
    ASSERT_TRUE(got.ok()) << i << ": " << got.error().message;
    EXPECT_EQ(*got, std::to_string(i));
  }
  EXPECT_TRUE(eventually([&] { return full > 0 || said().find("memory") != std::string::npos; }))
      << said();
  EXPECT_NE(client(2), nullptr) << "and new clients come in";
  stop = true;
  for (std::thread& one : hostile) one.join();
  const Result<std::string> kept = honest->get("k");
  ASSERT_TRUE(kept.ok()) << kept.error().message << said();
  EXPECT_EQ(*kept, "99") << "its store is still the same";
}

TEST_F(JobServerTest, AJobWithoutClientsIsPutToRest) {
  admit(1);
  start({"--idle-seconds", "1"});
  auto first = client(1);
  ASSERT_TRUE(first->set("k", "v").ok());
  EXPECT_EQ(job_processes().size(), 1u);
  first.reset();
  EXPECT_TRUE(eventually([&] { return job_processes().empty(); }, 20s)) << said();
  EXPECT_EQ(client(1)->get("k").error().code, Code::kNotFound);
}

TEST_F(JobServerTest, WithALogItComesBackFromRestAndFromTheServersDeath) {
  admit(1);
  const std::vector<std::string> flags = {"--idle-seconds", "1", "--wal", directory_ + "/logs"};
  start(flags);
  auto first = client(1);
  ASSERT_TRUE(first->set("k", "v").ok());
  const auto stays = client(1);
  first.reset();
  for (const pid_t pid : job_processes()) kill(pid, SIGKILL);
  EXPECT_EQ(*stays->get("k"), "v") << "the same epoch";
  end(SIGKILL);
  start(flags, address_);
  EXPECT_EQ(*stays->get("k"), "v");
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/logs/" + job(1) + ".wal"));
  dismiss(1);
  EXPECT_TRUE(eventually([&] {
    return !std::filesystem::exists(directory_ + "/logs/" + job(1) + ".wal");
  })) << "nothing is kept of a job that is over";
}

// Clients that come at the very moment of rest are not lost.
TEST_F(JobServerTest, AKnockAtTheMomentOfRestIsServed) {
  admit(1);
  start({"--idle-seconds", "0"});
  for (int i = 0; i < 40; ++i) {
    const auto one = client(1);
    ASSERT_NE(one, nullptr) << i;
    ASSERT_TRUE(one->ping().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 3));
  }
}

TEST_F(JobServerTest, ADirectoryThatOthersCanWriteIsRefused) {
  std::filesystem::permissions(directory_ + "/tokens", std::filesystem::perms::all);
  const std::string command = std::string(RENDEZVOUS_PATH) + " serve --tokens " + directory_ +
                              "/tokens --listen 127.0.0.1:0 2> " + directory_ + "/out";
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(said().find("others can write to the token directory"), std::string::npos) << said();
}

}  // namespace
}  // namespace ivy::store
