// SPDX-License-Identifier: Apache-2.0
// The load of tests/bench/run store: the same loops against every server, so that only the servers
// differ. Peers are spoken to in their own protocol, by bytes; only `clients` measures libraries
// (ours and hiredis). Results are JSON lines on standard output.
//
//   store_load clients|one|many|barrier|fanout ROUNDS COUNT PEER...
//   PEER   name=protocol=port=pid     protocol: native redis torch
//
//   clients  one blocking client library, ROUNDS blocks of COUNT calls, peers in turn
//   one      the same by bare send and recv
//   many     COUNT connections with one request under way each, ROUNDS windows of half a second
//   barrier  COUNT connections come, authenticate where they can and meet at one barrier
//   fanout   COUNT connections want one value of 128 bytes: before and after it is there
#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/client/client.h"
#include "tests/bench/store_protocols.h"

namespace ivy::bench {
namespace {

const std::string kJobId(32, '0');
const std::string kToken(32, 't');
constexpr std::size_t kValueBytes = 64;
constexpr std::size_t kFanoutBytes = 128;
constexpr double kWindowSeconds = 0.5;
constexpr double kTimeoutSeconds = 60;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- Connections --------------------------------------------------------------------------------

class Link {
 public:
  Link(const Peer& peer, bool blocking) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(peer.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      fail("connect to " + peer.name + ": " + std::strerror(errno));
    blocking_ = blocking;
  }
  ~Link() {
    if (fd_ >= 0) ::close(fd_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int fd() const { return fd_; }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) fail(std::string("send: ") + std::strerror(errno));
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  // False at the end of what is there.
  bool receive() {
    std::array<char, 16384> buffer;
    const ssize_t count = recv(fd_, buffer.data(), buffer.size(), blocking_ ? 0 : MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) fail("a server hung up");
    in_.append(buffer.data(), static_cast<std::size_t>(count));
    return true;
  }
  // Takes one whole reply.
  bool take(Shape shape, std::string* reply = nullptr) {
    const std::size_t end = reply_end(shape, in_);
    if (end == 0) return false;
    if (reply != nullptr) *reply = in_.substr(0, end);
    in_.erase(0, end);
    return true;
  }
  bool take_bytes(std::size_t count, std::string& bytes) {
    if (in_.size() < count) return false;
    bytes = in_.substr(0, count);
    in_.erase(0, count);
    return true;
  }
  void call(const Request& request) {
    send(request.bytes);
    while (!take(request.shape)) receive();
  }

 private:
  int fd_;
  bool blocking_;
  std::string in_;
};

// One connection's greeting, step by step.
class Greeting {
 public:
  std::string hello() {
    HandshakeHello hello;
    hello.purpose = "store";
    hello.job_id = kJobId;
    hello.nonce = random_bytes(kNonceBytes);
    hello_ = encode_hello(hello);
    return hello_;
  }
  std::string proof(const std::string& challenge) const {
    if (!check_challenge(hello_, challenge, kToken).ok()) fail("the store does not know the token");
    return make_proof(hello_, challenge, kToken);
  }

 private:
  std::string hello_;
};

void authenticate(const Peer& peer, Link& link) {
  if (peer.protocol == Protocol::kRedis) link.call({resp({"AUTH", kToken}), Shape::kResp});
  if (peer.protocol != Protocol::kNative) return;
  Greeting greeting;
  link.send(greeting.hello());
  std::string challenge;
  while (!link.take_bytes(kChallengeBytes, challenge)) link.receive();
  link.send(greeting.proof(challenge));
  while (!link.take(Shape::kFrame)) link.receive();
}

using Links = std::vector<std::unique_ptr<Link>>;

// Waits for bytes on any of many connections.
class Poll {
 public:
  Poll() : fd_(epoll_create1(EPOLL_CLOEXEC)), events_(512) {}
  ~Poll() { ::close(fd_); }
  Poll(const Poll&) = delete;
  Poll& operator=(const Poll&) = delete;
  void add(const Link& link, std::size_t number) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = number;
    epoll_ctl(fd_, EPOLL_CTL_ADD, link.fd(), &event);
  }
  void add_all(const Links& links) const {
    for (std::size_t i = 0; i < links.size(); ++i) add(*links[i], i);
  }
  void wait(const std::function<void(std::size_t)>& ready, int timeout_ms = 1000) {
    const int count = epoll_wait(fd_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
    for (int i = 0; i < count; ++i) ready(events_[static_cast<std::size_t>(i)].data.u64);
  }

 private:
  int fd_;
  std::vector<epoll_event> events_;
};

// Every connection sends one request and gets its replies; whatever is left is served at once.
void everybody(const Links& links, Poll& poll, const Request& request) {
  for (const auto& link : links) link->send(request.bytes);
  std::vector<std::size_t> left(links.size(), request.replies);
  std::size_t missing = links.size();
  const double give_up = now() + kTimeoutSeconds;
  while (missing > 0) {
    if (now() > give_up) fail(std::to_string(missing) + " connections got no answer");
    poll.wait([&](std::size_t i) {
      links[i]->receive();
      while (left[i] > 0 && links[i]->take(request.shape)) {
        if (--left[i] == 0) --missing;
      }
    });
  }
}

// ---- Figures ------------------------------------------------------------------------------------

class Figures {
 public:
  void add(double seconds) { samples_.push_back(static_cast<float>(seconds * 1e6)); }
  void clear() { samples_.clear(); }
  double at(double share) {
    if (samples_.empty()) return 0;
    const auto index = static_cast<std::size_t>(share * static_cast<double>(samples_.size() - 1));
    std::nth_element(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(index),
                     samples_.end());
    return static_cast<double>(samples_[index]);
  }

 private:
  std::vector<float> samples_;
};

void print(const Peer& peer, const std::string& what,
           const std::vector<std::pair<std::string, double>>& figures) {
  std::printf("{\"peer\": \"%s\", \"what\": \"%s\"", peer.name.c_str(), what.c_str());
  for (const auto& [name, value] : figures) std::printf(", \"%s\": %.3f", name.c_str(), value);
  std::printf("}\n");
  std::fflush(stdout);
}

// Of a server: what its threads have run.
double processor_seconds(int pid) {
  double nanoseconds = 0;
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    double of_task = 0;
    std::ifstream(task.path() / "schedstat") >> of_task;
    nanoseconds += of_task;
  }
  return nanoseconds / 1e9;
}

double kib_of(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::atof(line.c_str() + field.size() + 1);
  }
  return 0;
}

double resident_kib(int pid, const char* field = "VmRSS") {
  return kib_of("/proc/" + std::to_string(pid) + "/status", field);
}
// What the kernel keeps for sockets is in its slabs; both ends of every connection are.
double slab_kib() { return kib_of("/proc/meminfo", "Slab"); }

// ---- One client ---------------------------------------------------------------------------------

// A client library behind two calls.
struct Calls {
  std::function<void()> set, get;
};

Calls library_calls(const Peer& peer) {
  const std::string value(kValueBytes, 'v');
  if (peer.protocol == Protocol::kNative) {
    store::ClientOptions options;
    options.address = "127.0.0.1:" + std::to_string(peer.port);
    options.job_id = kJobId;
    options.token = kToken;
    auto made = store::Client::connect(options);
    if (!made.ok()) fail(made.error().message);
    const std::shared_ptr<store::Client> client = std::move(made).value();
    return {[client, value] {
              if (!client->set("key", value).ok()) fail("set");
            },
            [client] {
              if (!client->get("key").ok()) fail("get");
            }};
  }
  redisContext* raw = redisConnect("127.0.0.1", peer.port);
  if (raw == nullptr || raw->err != 0) fail("hiredis cannot connect");
  const std::shared_ptr<redisContext> context(raw, redisFree);
  const auto check = [](void* answer) {
    auto* reply = static_cast<redisReply*>(answer);
    if (reply == nullptr || reply->type == REDIS_REPLY_ERROR) fail("a Redis error");
    freeReplyObject(reply);
  };
  check(redisCommand(raw, "AUTH %s", kToken.c_str()));
  return {
      [context, check, value] {
        check(redisCommand(context.get(), "SET %b %b", "key", std::size_t{3}, value.data(),
                           value.size()));
      },
      [context, check] { check(redisCommand(context.get(), "GET %b", "key", std::size_t{3})); }};
}

Calls bare_calls(const Peer& peer) {
  const auto link = std::make_shared<Link>(peer, true);
  authenticate(peer, *link);
  const Request set_request = set(peer.protocol, "key", std::string(kValueBytes, 'v'));
  const Request get_request = get(peer.protocol, "key");
  return {[link, set_request] { link->call(set_request); },
          [link, get_request] { link->call(get_request); }};
}

// One line per peer, operation and block.
void measure_one(const std::vector<Peer>& peers, int rounds, int count, bool by_library) {
  std::vector<Calls> calls;
  for (const Peer& peer : peers)
    calls.push_back(by_library ? library_calls(peer) : bare_calls(peer));
  Figures figures;
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < peers.size(); ++turn) {
      const std::size_t i = round % 2 == 0 ? turn : peers.size() - 1 - turn;
      for (const char* what : {"set", "get"}) {
        const auto& call = what[0] == 's' ? calls[i].set : calls[i].get;
        figures.clear();
        double before = now();
        for (int n = 0; n < count; ++n) {
          call();
          const double after = now();
          figures.add(after - before);
          before = after;
        }
        if (round >= 0)
          print(peers[i], what, {{"median_us", figures.at(0.5)}, {"p99_us", figures.at(0.99)}});
      }
    }
  }
}

// ---- Many clients -------------------------------------------------------------------------------

Links connect_all(const Peer& peer, int count) {
  Links links;
  for (int i = 0; i < count; ++i) {
    links.push_back(std::make_unique<Link>(peer, false));
    authenticate(peer, *links.back());
  }
  return links;
}

void measure_window(const Peer& peer, Links& links, Poll& poll, const Request& request,
                    const char* what) {
  Figures figures;
  std::vector<double> since(links.size());
  std::size_t under_way = links.size();
  std::size_t served = 0;
  const double processor = processor_seconds(peer.pid);
  rusage mine{};
  getrusage(RUSAGE_SELF, &mine);
  const auto own_seconds = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  };
  const double own = own_seconds(mine);
  const double begin = now();
  for (std::size_t i = 0; i < links.size(); ++i) {
    since[i] = now();
    links[i]->send(request.bytes);
  }
  double end = begin;
  while (under_way > 0) {
    poll.wait([&](std::size_t i) {
      links[i]->receive();
      if (!links[i]->take(request.shape)) return;
      end = now();
      figures.add(end - since[i]);
      ++served;
      if (end - begin > kWindowSeconds) {
        --under_way;
        return;
      }
      since[i] = end;
      links[i]->send(request.bytes);
    });
  }
  getrusage(RUSAGE_SELF, &mine);
  const double seconds = end - begin;
  const double busy = processor_seconds(peer.pid) - processor;
  print(peer, what,
        {{"per_second", static_cast<double>(served) / seconds},
         {"median_us", figures.at(0.5)},
         {"p99_us", figures.at(0.99)},
         {"server_busy", busy / seconds},
         {"server_us_each", busy / static_cast<double>(served) * 1e6},
         {"load_busy", (own_seconds(mine) - own) / seconds}});
}

void measure_many(const std::vector<Peer>& peers, int rounds, int count) {
  std::vector<Links> links;
  std::vector<std::unique_ptr<Poll>> polls;
  for (const Peer& peer : peers) {
    links.push_back(connect_all(peer, count));
    polls.push_back(std::make_unique<Poll>());
    polls.back()->add_all(links.back());
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < peers.size(); ++turn) {
      const std::size_t i = round % 2 == 0 ? turn : peers.size() - 1 - turn;
      const Protocol protocol = peers[i].protocol;
      const std::string value(kValueBytes, 'v');
      measure_window(peers[i], links[i], *polls[i], set(protocol, "key", value), "set");
      measure_window(peers[i], links[i], *polls[i], get(protocol, "key"), "get");
    }
  }
}

// ---- A barrier of newcomers ---------------------------------------------------------------------

// What a newcomer sends, each step when the reply to the one before has come. The last reply of the
// last step is its release.
class Newcomer {
 public:
  Newcomer(const Peer& peer, std::uint32_t member, std::uint32_t size, const std::string& name)
      : peer_(peer), member_(member), size_(size), name_(name) {}
  void begin(Link& link) {
    switch (peer_.protocol) {
      case Protocol::kNative:
        return link.send(greeting_.hello());
      case Protocol::kRedis:
        return link.send(resp({"AUTH", kToken}));
      case Protocol::kTorch:
        return link.send(arrive_torch());
    }
  }
  // True once it is released.
  bool go_on(Link& link) {
    while (true) {
      const int before = step_;
      const bool released = peer_.protocol == Protocol::kNative  ? native_step(link)
                            : peer_.protocol == Protocol::kRedis ? redis_step(link)
                                                                 : torch_step(link);
      if (released) return true;
      if (step_ == before) return false;
    }
  }

 private:
  bool native_step(Link& link) {
    std::string bytes;
    if (step_ == 0) {
      if (!link.take_bytes(kChallengeBytes, bytes)) return false;
      link.send(greeting_.proof(bytes));
    } else if (step_ == 1) {
      if (!link.take(Shape::kFrame)) return false;
      std::string payload;
      store::put_u64(payload, store::kForeverMs);
      store::put_text(payload, name_);
      store::put_u32(payload, size_);
      store::put_u32(payload, member_);
      store::put_u64(payload, 1);
      link.send(frame(store::Op::kBarrier, payload));
    } else {
      return link.take(Shape::kFrame);
    }
    ++step_;
    return false;
  }

  // Redis has no barrier: a counter, and a list from which everybody pops one item.
  bool redis_step(Link& link) {
    std::string reply;
    if (!link.take(Shape::kResp, &reply)) return false;
    if (step_ == 0) {
      link.send(resp({"INCR", name_}));
    } else if (step_ == 1) {
      if (reply == ":" + std::to_string(size_) + "\r\n") {
        std::string push = "*" + std::to_string(size_ + 2) + "\r\n$5\r\nRPUSH\r\n";
        const std::string list = name_ + "/go";
        push += "$" + std::to_string(list.size()) + "\r\n" + list + "\r\n";
        for (std::uint32_t i = 0; i < size_; ++i) push += "$1\r\n1\r\n";
        link.send(push);
        step_ = 2;
        return false;
      }
      link.send(resp({"BLPOP", name_ + "/go", "0"}));
      ++step_;
    } else if (step_ == 2) {  // The last one's push; everybody else's release.
      if (reply.starts_with(":")) {
        link.send(resp({"BLPOP", name_ + "/go", "0"}));
        return false;
      }
      return true;
    }
    step_ = std::max(step_, 1);
    return false;
  }

  std::string arrive_torch() const {
    std::string out(1, static_cast<char>(TorchOp::kAdd));
    out += torch_text(name_);
    store::put_u64(out, 1);
    return out;
  }
  bool torch_step(Link& link) {
    std::string reply;
    if (step_ == 0) {
      if (!link.take(Shape::kNumber, &reply)) return false;
      std::string bytes;
      if (little(reply) == size_) {
        bytes = std::string(1, static_cast<char>(TorchOp::kSet)) + torch_text(name_ + "/go") +
                torch_text("1");
      }
      link.send(bytes + torch_keys(TorchOp::kWait, name_ + "/go"));
      ++step_;
      return false;
    }
    return link.take(Shape::kByte);
  }

  const Peer& peer_;
  const std::uint32_t member_;
  const std::uint32_t size_;
  const std::string name_;
  Greeting greeting_;
  int step_ = 0;
};

void measure_barrier_once(const Peer& peer, int count, int round) {
  const std::string name = "barrier/" + std::to_string(round);
  const auto size = static_cast<std::uint32_t>(count);
  const double resident = resident_kib(peer.pid);
  const double processor = processor_seconds(peer.pid);
  const double slab = slab_kib();
  const double begin = now();
  Links links;
  std::vector<std::unique_ptr<Newcomer>> newcomers;
  Poll poll;
  std::uint32_t released = 0;
  double last_greeted = 0;
  const auto serve = [&](std::size_t i) {
    links[i]->receive();
    if (newcomers[i]->go_on(*links[i])) ++released;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    links.push_back(std::make_unique<Link>(peer, false));
    newcomers.push_back(std::make_unique<Newcomer>(peer, i, size, name));
    newcomers.back()->begin(*links.back());
    poll.add(*links.back(), i);
    if (i % 16 == 15) poll.wait(serve, 0);  // Who has been answered goes on while others come.
  }
  last_greeted = now();
  while (released < size) {
    if (now() > begin + kTimeoutSeconds) fail("only " + std::to_string(released) + " got through");
    poll.wait(serve);
  }
  const double end = now();
  print(peer, "barrier",
        {{"seconds", end - begin},
         {"connected_seconds", last_greeted - begin},
         {"server_seconds", processor_seconds(peer.pid) - processor},
         {"resident_kib_each", (resident_kib(peer.pid) - resident) / count},
         {"peak_kib_each", (resident_kib(peer.pid, "VmHWM") - resident) / count},
         {"kernel_kib_each", (slab_kib() - slab) / count}});
}

// The next round begins when the server has seen that those of the last are gone.
void settle() { usleep(300'000); }

void measure_barrier(const std::vector<Peer>& peers, int rounds, int count) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < peers.size(); ++turn) {
      const std::size_t i = round % 2 == 0 ? turn : peers.size() - 1 - turn;
      measure_barrier_once(peers[i], count, round);
      settle();
    }
  }
}

// ---- One value for many -------------------------------------------------------------------------

// Who waits for a value that is not there gets it how? Redis's nearest is a subscription.
Request wish(Protocol protocol, const std::string& key) {
  if (protocol == Protocol::kNative) {
    std::string payload;
    store::put_u64(payload, store::kForeverMs);
    store::put_text(payload, key);
    return {frame(store::Op::kWaitGet, payload), Shape::kFrame};
  }
  if (protocol == Protocol::kRedis) return {resp({"SUBSCRIBE", key}), Shape::kResp, 2};
  return {torch_keys(TorchOp::kWait, key), Shape::kByte};
}

void measure_waiting(const Peer& peer, Links& links, Poll& poll, int round) {
  const std::string key = "unique/" + std::to_string(round);
  const std::string value(kFanoutBytes, 'n');
  const Request wanted = wish(peer.protocol, key);
  const bool subscribed = peer.protocol == Protocol::kRedis;
  const bool asks_again = peer.protocol == Protocol::kTorch;  // As torch's client: wait, then get.
  for (const auto& link : links) link->send(wanted.bytes);
  std::size_t missing = links.size();
  if (subscribed) {
    while (missing > 0) {
      poll.wait([&](std::size_t i) {
        links[i]->receive();
        if (links[i]->take(Shape::kResp)) --missing;
      });
    }
    missing = links.size();
  }
  usleep(50'000);  // Until everybody waits.
  Link writer(peer, true);
  authenticate(peer, writer);
  const Request get_request = get(peer.protocol, key);
  std::vector<char> got(links.size(), 0);
  const double begin = now();
  writer.send(subscribed ? resp({"PUBLISH", key, value}) : set(peer.protocol, key, value).bytes);
  while (missing > 0) {
    if (now() > begin + kTimeoutSeconds) fail("a value did not reach everybody");
    poll.wait([&](std::size_t i) {
      links[i]->receive();
      if (asks_again && got[i] == 0) {
        if (!links[i]->take(Shape::kByte)) return;
        got[i] = 1;
        return links[i]->send(get_request.bytes);
      }
      if (links[i]->take(asks_again ? Shape::kTorchBytes : wanted.shape)) --missing;
    });
  }
  print(peer, "waiting", {{"milliseconds", (now() - begin) * 1e3}});
  if (subscribed) everybody(links, poll, {resp({"UNSUBSCRIBE"}), Shape::kResp});
}

void measure_fanout(const std::vector<Peer>& peers, int rounds, int count) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < peers.size(); ++turn) {
      const Peer& peer = peers[round % 2 == 0 ? turn : peers.size() - 1 - turn];
      Links links = connect_all(peer, count);
      Poll poll;
      poll.add_all(links);
      measure_waiting(peer, links, poll, round);
      const std::string key = "there/" + std::to_string(round);
      Link writer(peer, true);
      authenticate(peer, writer);
      writer.call(set(peer.protocol, key, std::string(kFanoutBytes, 'n')));
      const double begin = now();
      everybody(links, poll, get(peer.protocol, key));
      print(peer, "there", {{"milliseconds", (now() - begin) * 1e3}});
      links.clear();
      settle();
    }
  }
}

// ---- The command line ---------------------------------------------------------------------------

Peer peer_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '=');) parts.push_back(part);
  if (parts.size() != 4) fail("'" + text + "' is no name=protocol=port=pid");
  Peer peer;
  peer.name = parts[0];
  if (parts[1] != "native" && parts[1] != "redis" && parts[1] != "torch")
    fail("'" + parts[1] + "' is no protocol");
  peer.protocol = parts[1] == "native"  ? Protocol::kNative
                  : parts[1] == "redis" ? Protocol::kRedis
                                        : Protocol::kTorch;
  peer.port = static_cast<std::uint16_t>(std::atoi(parts[2].c_str()));
  peer.pid = std::atoi(parts[3].c_str());
  return peer;
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 4) fail("usage: store_load WHAT ROUNDS COUNT PEER...");
  const int rounds = std::atoi(words[1].c_str());
  const int count = std::atoi(words[2].c_str());
  std::vector<Peer> peers;
  for (std::size_t i = 3; i < words.size(); ++i) peers.push_back(peer_of(words[i]));
  if (words[0] == "clients") {
    measure_one(peers, rounds, count, true);
  } else if (words[0] == "one") {
    measure_one(peers, rounds, count, false);
  } else if (words[0] == "many") {
    measure_many(peers, rounds, count);
  } else if (words[0] == "barrier") {
    measure_barrier(peers, rounds, count);
  } else if (words[0] == "fanout") {
    measure_fanout(peers, rounds, count);
  } else {
    fail("'" + words[0] + "' cannot be measured");
  }
  return 0;
}

}  // namespace
}  // namespace ivy::bench

int main(int argc, char** argv) {
  return ivy::bench::run(std::vector<std::string>(argv + 1, argv + argc));
}
