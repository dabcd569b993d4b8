// The store with a log on the disk: what was acknowledged is there in the next process, whatever
// happened to this one. A crash is a fork of the server that is killed with SIGKILL.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "proto/os/listening_socket.h"
#include "rendezvous/client/client.h"
#include "rendezvous/log/wal_file.h"
#include "tests/rendezvous/journal_book.h"
#include "tests/rendezvous/server_thread.h"
#include "tests/rendezvous/store_proxy.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::kJobId;
using test::kToken;
using test::StoreProxy;
using test::stretched;

class DurableStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ivy-wal-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    listener_ = listen_tcp("127.0.0.1", 0).value();
  }
  void TearDown() override {
    end(SIGKILL);
    ::close(listener_);
    if (is_mounted_) umount2(directory_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(directory_);
  }

  // A server in a process of its own, on a socket that outlives it.
  void start(const std::function<void()>& before = [] {}) {
    std::fflush(nullptr);
    server_ = fork();
    ASSERT_GE(server_, 0);
    if (server_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(serve(before));
    }
  }
  // Its exit code, or 128 and the signal.
  int end(int signal) {
    if (server_ <= 0) return 0;
    if (signal != 0) kill(server_, signal);
    int status = 0;
    waitpid(std::exchange(server_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  ClientOptions options() const {
    ClientOptions options;
    options.address = address_of(listener_);
    options.job_id = kJobId;
    options.token = kToken;
    options.connect_timeout = stretched(10s);
    options.request_timeout = stretched(20s);
    return options;
  }
  std::unique_ptr<Client> client() const {
    Result<std::unique_ptr<Client>> made = Client::connect(options());
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::string log_path() const { return directory_ + "/" + kJobId + ".wal"; }
  std::string log_bytes() const {
    std::ifstream file(log_path(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void write_log(const std::string& bytes) const {
    std::ofstream(log_path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  int listener_ = -1;
  pid_t server_ = 0;
  bool is_mounted_ = false;

 private:
  int serve(const std::function<void()>& before) const {
    before();
    boost::asio::io_context loop(1);
    ServerOptions options;
    options.job_id = kJobId;
    options.token = kToken;
    int code = 0;
    options.log = [](const std::string& line) {
      std::fprintf(stderr, "store: %s\n", line.c_str());
    };
    options.log_lost = [&](const std::string& line) {
      std::fprintf(stderr, "store: %s\n", line.c_str());
      code = 7;
      loop.stop();
    };
    Server server(loop, options);
    const Result<void> kept = server.keep_in(directory_);
    if (!kept.ok()) {
      std::fprintf(stderr, "store: %s\n", kept.error().message.c_str());
      return 8;
    }
    server.listen(dup(listener_), Server::Dialect::kNative);
    loop.run();
    return code;
  }
};

TEST_F(DurableStoreTest, WhatWasAcknowledgedSurvivesAKill) {
  start();
  const auto client = this->client();
  ASSERT_TRUE(client->set("k", "v").ok());
  EXPECT_EQ(*client->add("n", 5), 5);
  EXPECT_EQ(*client->append("text", "ab"), 2u);
  EXPECT_EQ(*client->push("q", "item"), 1u);
  EXPECT_EQ(*client->barrier("b", 1, 0, stretched(5s)), 1u);
  EXPECT_EQ(end(SIGKILL), 128 + SIGKILL);
  // Nobody is told: the client dials again by itself, and its epoch is still the store's.
  start();
  EXPECT_EQ(*client->get("k"), "v");
  EXPECT_EQ(*client->add("n", 1), 6);
  EXPECT_EQ(*client->append("text", "c"), 3u);
  EXPECT_EQ(*client->pop("q", stretched(5s)), "item");
  EXPECT_EQ(*client->barrier("b", 1, 0, stretched(5s)), 2u);
  ASSERT_TRUE(*client->remove("k"));
  end(SIGKILL);
  start();
  EXPECT_EQ(client->get("k").error().code, Code::kNotFound);
  EXPECT_EQ(*client->get("text"), "abc");
  EXPECT_EQ(*client->queue_length("q"), 0u);
}

// The store is killed when it has acknowledged a write, and before the client has heard of it.
TEST_F(DurableStoreTest, WhatIsRepeatedAfterAKillIsDoneOnce) {
  for (const bool is_remove : {false, true}) {
    start();
    StoreProxy proxy(test::port_of(listener_));
    ClientOptions through = options();
    through.address = "127.0.0.1:" + std::to_string(proxy.port());
    const auto client = Client::connect(through).value();
    const auto other = this->client();
    ASSERT_TRUE(other->set("k", "0").ok());
    proxy.hold_replies(true);
    std::thread writing([&] {
      if (is_remove) {
        const Result<bool> removed = client->remove("k");
        EXPECT_TRUE(removed.ok() && *removed);
      } else {
        EXPECT_TRUE(client->set("k", "1").ok());
      }
    });
    EXPECT_TRUE(eventually([&] {
      const auto value = other->get("k");
      return is_remove ? !value.ok() : *value == "1";
    }));
    ASSERT_TRUE(other->set("k", "2").ok());
    end(SIGKILL);
    proxy.cut();
    proxy.hold_replies(false);
    start();
    writing.join();
    EXPECT_EQ(*other->get("k"), "2");
    end(SIGKILL);
  }
}

TEST_F(DurableStoreTest, AWaitGoesOnOverAKill) {
  start();
  const auto waiting = client();
  std::thread waiter([&] {
    const auto value = waiting->wait_get("later", stretched(30s));
    ASSERT_TRUE(value.ok()) << value.error().message;
    EXPECT_EQ(*value, "came");
  });
  std::vector<std::thread> members;
  for (std::uint32_t member = 0; member < 2; ++member) {
    members.emplace_back([this, member] {
      const auto own = client();
      const auto round = own->barrier("meet", 3, member, stretched(30s));
      ASSERT_TRUE(round.ok()) << round.error().message;
      EXPECT_EQ(*round, 1u);
    });
  }
  const auto other = client();
  EXPECT_TRUE(eventually([&] {
    const auto why = other->why();
    return why.ok() && why->find("later") != std::string::npos &&
           why->find("meet") != std::string::npos;
  }));
  end(SIGKILL);
  start();
  ASSERT_TRUE(other->set("later", "came").ok());
  EXPECT_EQ(*other->barrier("meet", 3, 2, stretched(30s)), 1u);
  waiter.join();
  for (std::thread& member : members) member.join();
}

// What one writer was told, over many kills at random moments: an acknowledged number is there, and
// nothing is there that was not asked for.
TEST_F(DurableStoreTest, NoAcknowledgementIsLostOverManyKills) {
  start();
  std::mt19937 random(11);
  std::atomic<std::int64_t> acknowledged = 0;
  std::atomic<std::int64_t> asked = 0;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    const auto client = this->client();
    for (std::int64_t i = 1; !stop; ++i) {
      asked = i;
      ASSERT_TRUE(client->set("last", std::to_string(i)).ok());
      acknowledged = i;
    }
  });
  std::atomic<std::int64_t> unknown = 0;
  std::atomic<std::int64_t> added = 0;
  std::thread adder([&] {
    const auto client = this->client();
    while (!stop) {
      const auto sum = client->add("sum", 1);
      if (sum.ok()) {
        added += 1;
      } else {
        // Not repeated, and said so: whether it happened is not known.
        ASSERT_EQ(sum.error().code, Code::kUnavailable) << sum.error().message;
        ASSERT_NE(sum.error().message.find("is not known"), std::string::npos);
        unknown += 1;
      }
    }
  });
  const auto reader = client();
  for (int round = 0; round < 15; ++round) {
    const std::int64_t before = acknowledged;
    EXPECT_TRUE(eventually([&] { return acknowledged > before + 3; }, 20s));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    end(SIGKILL);
    const std::int64_t sure = acknowledged;
    const std::int64_t sum = added;
    start();
    const auto last = reader->get("last");
    ASSERT_TRUE(last.ok()) << last.error().message;
    EXPECT_GE(std::stoll(*last), sure);
    EXPECT_LE(std::stoll(*last), asked);
    EXPECT_GE(*reader->add("sum", 0), sum);
  }
  stop = true;
  writer.join();
  adder.join();
  const std::int64_t sum = *reader->add("sum", 0);
  EXPECT_GE(sum, added);
  EXPECT_LE(sum, added + unknown);
}

// The file as a real life left it, cut off at random: a prefix of what one client wrote.
TEST_F(DurableStoreTest, ACutFileGivesAPrefix) {
  start();
  constexpr int kWrites = 200;
  {
    const auto client = this->client();
    for (int i = 1; i <= kWrites; ++i)
      ASSERT_TRUE(client->set("k" + std::to_string(i), std::string(i, 'v')).ok());
  }
  end(SIGKILL);
  const std::string whole = log_bytes();
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::size_t cut = kLogHeadBytes + random() % (whole.size() - kLogHeadBytes + 1);
    write_log(whole.substr(0, cut));
    Engine engine;
    Result<std::unique_ptr<WalFile>> file = WalFile::open(directory_, kJobId, engine);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ((*file)->epoch(), whole.substr(40, 16)) << "nothing acknowledged is missing";
    Replies replies;
    const ClientId client = *engine.join({}, 0);
    bool gone = false;
    for (int i = 1; i <= kWrites; ++i) {
      engine.apply(client, 1, Check{{"k" + std::to_string(i)}}, 0, replies);
      const bool there = std::get<Number>(replies.back().body).value == 1;
      EXPECT_FALSE(there && gone) << "k" << i << " after a cut at " << cut;
      gone = gone || !there;
    }
    file->reset();
    EXPECT_LE(std::filesystem::file_size(log_path()), cut) << "the torn end is gone";
  }
}

TEST_F(DurableStoreTest, DamageIsCutOffAndTheEpochIsAnother) {
  start();
  const auto client = this->client();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client->add("n", 1).ok());
  end(SIGKILL);
  std::string bytes = log_bytes();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
  write_log(bytes);
  start();
  const auto lost = client->get("n");
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code, Code::kAborted);
  EXPECT_TRUE(lost.error().message.starts_with("EpochLost"));
  const std::int64_t left = *this->client()->add("n", 0);
  EXPECT_GT(left, 0);
  EXPECT_LT(left, 20);
  // The next start finds a whole file, of the new epoch.
  end(SIGKILL);
  const std::string epoch = log_bytes().substr(40, 16);
  EXPECT_NE(epoch, bytes.substr(40, 16));
  start();
  EXPECT_EQ(*this->client()->add("n", 0), left);
  EXPECT_EQ(log_bytes().substr(40, 16), epoch);
}

TEST_F(DurableStoreTest, AnotherFileOrAnotherUserOfItIsRefused) {
  Engine engine;
  {
    const auto first = WalFile::open(directory_, kJobId, engine);
    ASSERT_TRUE(first.ok());
    Engine other;
    EXPECT_EQ(WalFile::open(directory_, kJobId, other).error().code, Code::kAlreadyExists);
  }
  std::string bytes = log_bytes();
  bytes[9] = '!';
  write_log(bytes);
  Engine second;
  EXPECT_EQ(WalFile::open(directory_, kJobId, second).error().code, Code::kDataLoss);
  write_log(std::string(1000, 'x'));
  Engine third;
  EXPECT_EQ(WalFile::open(directory_, kJobId, third).error().code, Code::kDataLoss);
  EXPECT_EQ(log_bytes(), std::string(1000, 'x')) << "what is not ours is left alone";
  std::filesystem::remove(log_path());
  ASSERT_EQ(symlink("/etc/passwd", log_path().c_str()), 0);
  Engine fourth;
  EXPECT_EQ(WalFile::open(directory_, kJobId, fourth).error().code, Code::kUnavailable);
  Engine fifth;
  EXPECT_EQ(WalFile::open("/proc/nowhere", kJobId, fifth).error().code, Code::kUnavailable);
}

TEST_F(DurableStoreTest, AGenerationIsKeptAndForgets) {
  Engine engine;
  Replies none;
  auto file = WalFile::open(directory_, kJobId, engine).value();
  const ClientId client = *engine.join({}, 0);
  engine.apply(client, 1, Set{"of the first", "x"}, 0, none);
  engine.begin_generation(3, none);
  file->commit();
  EXPECT_TRUE(eventually([&] { return file->collect().ok() && file->committed() == 2; }));
  file.reset();
  Engine again;
  file = WalFile::open(directory_, kJobId, again).value();
  EXPECT_EQ(again.generation(), 3u);
  EXPECT_EQ(again.key_count(), 0u);
  file.reset();  // Before its engine.
}

TEST_F(DurableStoreTest, AFullDiskIsATypedErrorAndLosesNothing) {
  const int mounted = mount("ivy-test", directory_.c_str(), "tmpfs", 0, "size=6m");
  if (mounted != 0) GTEST_SKIP() << "a small disk cannot be mounted: " << strerror(errno);
  is_mounted_ = true;
  start();
  const auto client = this->client();
  const std::string value(64u << 10, 'v');
  int stored = 0;
  Result<void> result;
  while (stored < 100 && (result = client->set("k" + std::to_string(stored), value)).ok()) ++stored;
  ASSERT_FALSE(result.ok());
  ASSERT_EQ(result.error().code, Code::kResourceExhausted) << result.error().message;
  EXPECT_NE(result.error().message.find("the disk of the store's log is full"), std::string::npos);
  EXPECT_GT(stored, 5);
  // Reading goes on, and so does taking away.
  EXPECT_EQ(*client->get("k0"), value);
  EXPECT_TRUE(*client->remove("k0"));
  const Result<void> more = client->set("more", value);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::kResourceExhausted);
  ASSERT_EQ(mount("ivy-test", directory_.c_str(), "tmpfs", MS_REMOUNT, "size=32m"), 0);
  EXPECT_TRUE(client->set("more", value).ok()) << "there is room again";
  end(SIGKILL);
  start();
  EXPECT_EQ(client->get("k0").error().code, Code::kNotFound);
  for (int i = 1; i < stored; ++i) EXPECT_EQ(*client->get("k" + std::to_string(i)), value) << i;
  EXPECT_FALSE(*client->check({"k" + std::to_string(stored)}));
  EXPECT_EQ(*client->get("more"), value);
}

// Taking away and meeting write as well: they go on for as long as the room that is kept back for
// them lasts, and then they are refused, too. The store does not end.
TEST_F(DurableStoreTest, AFullDiskNeverEndsTheStore) {
  const int mounted = mount("ivy-test", directory_.c_str(), "tmpfs", 0, "size=8m");
  if (mounted != 0) GTEST_SKIP() << "a small disk cannot be mounted: " << strerror(errno);
  is_mounted_ = true;
  start();
  const auto client = this->client();
  const auto key = [](int i) { return std::string(8000, 'k') + std::to_string(i); };
  int stored = 0;
  while (stored < 10'000 && client->set(key(stored), "v").ok()) ++stored;
  ASSERT_GT(stored, 300);
  ASSERT_LT(stored, 10'000);
  int removed = 0;
  Result<bool> gone = true;
  while (removed < stored && (gone = client->remove(key(removed))).ok()) ++removed;
  ASSERT_FALSE(gone.ok()) << "all " << stored << " were removed";
  EXPECT_EQ(gone.error().code, Code::kResourceExhausted) << gone.error().message;
  EXPECT_GT(removed, 50);
  Result<std::uint64_t> round = 0;
  for (int i = 0; i < 200 && round.ok(); ++i) round = client->barrier(key(-1), 1, 0, stretched(5s));
  ASSERT_FALSE(round.ok());
  EXPECT_EQ(round.error().code, Code::kResourceExhausted) << round.error().message;
  EXPECT_EQ(*client->get(key(removed)), "v");
  ASSERT_EQ(mount("ivy-test", directory_.c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  EXPECT_TRUE(*client->remove(key(removed))) << "there is room again";
  end(SIGKILL);
  start();
  EXPECT_EQ(*client->count("k"), static_cast<std::uint64_t>(stored - removed - 1));
}

// A disk that fails where reserving said that there is room: nobody is told that it was kept.
TEST_F(DurableStoreTest, AFailingDiskEndsTheStoreAndAcknowledgesNothing) {
  start([] { std::signal(SIGXFSZ, SIG_IGN); });
  {
    const auto client = this->client();
    ASSERT_TRUE(client->set("k", "before").ok());
    // The reserved room is behind this limit; the file itself is not allowed to grow any more.
    const rlimit limit{kLogHeadBytes, kLogHeadBytes};
    ASSERT_EQ(prlimit(server_, RLIMIT_FSIZE, &limit, nullptr), 0);
    const Result<void> lost = client->set("k", "after");
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.error().code, Code::kUnavailable);
    EXPECT_NE(lost.error().message.find(log_path() + " is lost"), std::string::npos)
        << lost.error().message;
    EXPECT_NE(lost.error().message.find("is not known"), std::string::npos);
  }
  EXPECT_EQ(end(0), 7);
  start();
  EXPECT_EQ(*client()->get("k"), "before");
}

TEST_F(DurableStoreTest, TheLogIsWrittenAnewAndStaysSmall) {
  start();
  const auto client = this->client();
  const std::string value(4u << 20, 'v');
  ASSERT_TRUE(client->set("kept", "from the beginning").ok());
  ASSERT_TRUE(client->push("q", "one").ok());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(client->set("k", value + std::to_string(i)).ok());
    ASSERT_TRUE(client->push("q", std::to_string(i)).ok());
  }
  EXPECT_TRUE(eventually([&] { return std::filesystem::file_size(log_path()) < (80u << 20); }));
  EXPECT_FALSE(std::filesystem::exists(log_path() + ".new"));
  end(SIGKILL);
  start();
  EXPECT_EQ(*client->get("kept"), "from the beginning");
  EXPECT_EQ(*client->get("k"), value + "39");
  EXPECT_EQ(*client->queue_length("q"), 41u);
  EXPECT_EQ(*client->pop("q", stretched(5s)), "one");
}

}  // namespace
}  // namespace ivy::store
