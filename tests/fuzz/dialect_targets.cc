// SPDX-License-Identifier: Apache-2.0
// Runs a script with several clients of one dialect on one engine: bytes in any pieces,
// disconnects, time and generations. Every reply must belong to a request of a connected client,
// and after all clients have left, nothing of them may remain.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/native_dialect.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/engine/explanation.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

constexpr std::size_t kClients = 3;
constexpr std::uint64_t kStep_ns = 10'000'000;
constexpr std::size_t kMaxTurns = 100'000;

// Small limits that scripts can reach.
store::EngineLimits small_limits() {
  store::EngineLimits limits;
  limits.store_bytes = 4096;
  limits.keys = 8;
  limits.waits_per_client = 4;
  limits.watches_per_client = 3;
  limits.waiting_bytes_per_client = 1024;
  limits.waiting_bytes = 2048;
  return limits;
}

// A common interface of both dialects.
class Client {
 public:
  virtual ~Client() = default;
  virtual Result<void> receive(std::string_view bytes, std::uint64_t now_ns,
                               store::Replies& out) = 0;
  virtual Result<void> reply(const store::Reply& reply, std::string& bytes) = 0;
  virtual bool has_more() const = 0;
  virtual store::ClientId id() const = 0;
  // Checks that a client can parse the bytes sent so far.
  virtual void look_at(std::string_view sent) = 0;
};

class NativeClient : public Client {
 public:
  explicit NativeClient(store::Engine& engine) {
    store::ClientInfo info;
    info.generation = engine.generation();
    info.address = "127.0.0.1:9";
    info.session = 9;  // All clients share it, so that one can repeat another's request.
    dialect_ = store::NativeDialect::make(engine, info, 1).value();
  }
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, store::Replies& out) override {
    return dialect_->receive(bytes, now_ns, out);
  }
  Result<void> reply(const store::Reply& reply, std::string& bytes) override {
    dialect_->reply(reply, bytes);
    return {};
  }
  bool has_more() const override { return dialect_->has_more(); }
  store::ClientId id() const override { return dialect_->client(); }
  void look_at(std::string_view sent) override {
    store::WireDecoder decoder(store::kMaxFrameBytes);
    decoder.feed(sent);
    std::size_t bytes = 0;
    while (const auto frame = decoder.next().value()) {
      std::string again;
      store::append_frame(again, frame->head, frame->payload);
      bytes += again.size();
      if (frame->head.kind == 0) continue;
      store::PayloadReader in(frame->payload);
      in.text();
      IVY_ASSERT(in.done());  // An error consists of one text.
    }
    IVY_ASSERT(bytes == sent.size());
  }

 private:
  std::unique_ptr<store::NativeDialect> dialect_;
};

class TorchClient : public Client {
 public:
  explicit TorchClient(store::Engine& engine) : dialect_(engine, engine.generation(), "10.0.0.1") {}
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, store::Replies& out) override {
    return dialect_.receive(bytes, now_ns, out);
  }
  Result<void> reply(const store::Reply& reply, std::string& bytes) override {
    return dialect_.reply(reply, bytes);
  }
  bool has_more() const override { return dialect_.has_more(); }
  store::ClientId id() const override { return dialect_.client(); }
  void look_at(std::string_view) override {}

 private:
  store::TorchDialect dialect_;
};

enum class Kind { kNative, kTorchA, kTorchC };

std::string first_words(Kind kind) {
  if (kind != Kind::kTorchC) return {};
  std::string hello(1, '\0');
  store::put_u32(hello, 0x3C85F7CE);
  return hello;
}

class Clients {
 public:
  explicit Clients(Kind kind, store::EngineLimits limits = small_limits())
      : kind_(kind), engine_(limits) {}
  ~Clients() {
    IVY_ASSERT(is_printable(store::explain(engine_.wait_graph(), now_ns_)));
    clients_.clear();
    IVY_ASSERT(engine_.open_requests() == 0);
    IVY_ASSERT(engine_.waiting_bytes() == 0);
    IVY_ASSERT(engine_.wait_graph().clients.empty());
    IVY_ASSERT(engine_.bytes() <= small_limits().store_bytes || engine_.key_count() > 0);
  }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Returns false if the client was disconnected.
  bool feed(std::size_t client_index, std::string_view bytes) {
    auto& client = clients_[client_index];
    if (client == nullptr) {
      if (kind_ == Kind::kNative) {
        client = std::make_unique<NativeClient>(engine_);
      } else {
        client = std::make_unique<TorchClient>(engine_);
      }
      const std::string hello = first_words(kind_);
      if (!hello.empty()) turn(client_index, hello);
    }
    turn(client_index, bytes);
    serve_rest();
    return clients_.contains(client_index);
  }
  void hang_up(std::size_t client_index) { clients_.erase(client_index); }
  void pass(std::uint64_t steps) {
    now_ns_ += steps * kStep_ns;
    store::Replies due;
    engine_.advance(now_ns_, due);
    deliver(due);
    serve_rest();
  }
  void begin_generation() {
    store::Replies replies;
    engine_.begin_generation(engine_.generation() + 1, replies);
    deliver(replies);
    // A client of the previous generation may still send bytes before it is disconnected.
    if (clients_.contains(0)) feed(0, std::string(1, '\0'));
    clients_.clear();
    IVY_ASSERT(engine_.key_count() == 0);
    IVY_ASSERT(engine_.bytes() == 0);
  }
  std::string sent_to(std::size_t client_index) { return sent_[client_index]; }
  // Returns the reason of the last disconnect by the dialect, or an empty string.
  const std::string& rejection() const { return rejection_; }

 private:
  static bool is_printable(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || c >= ' '; });
  }
  void serve_rest() {
    bool again = true;
    for (std::size_t turns = 0; again; ++turns) {
      IVY_ASSERT(turns < kMaxTurns);
      again = false;
      for (std::size_t client_index = 0; client_index < kClients; ++client_index) {
        const auto found = clients_.find(client_index);
        if (found == clients_.end() || !found->second->has_more()) continue;
        turn(client_index, {});
        again = true;
      }
    }
  }
  void turn(std::size_t client_index, std::string_view bytes) {
    const auto found = clients_.find(client_index);
    if (found == clients_.end()) return;
    store::Replies replies;
    const Result<void> taken = found->second->receive(bytes, now_ns_, replies);
    deliver(replies);
    if (taken.ok()) return;
    rejection_ = taken.error().message;
    IVY_ASSERT(is_printable(rejection_));
    clients_.erase(client_index);
  }
  void deliver(const store::Replies& replies) {
    for (const store::Reply& reply : replies) {
      const auto of = std::find_if(clients_.begin(), clients_.end(), [&](const auto& entry) {
        return entry.second->id() == reply.client;
      });
      if (of == clients_.end()) continue;  // Disconnected in this turn.
      std::string bytes;
      const Result<void> printed = of->second->reply(reply, bytes);
      of->second->look_at(bytes);
      sent_[of->first] += bytes;
      if (!printed.ok()) clients_.erase(of);
    }
  }

  const Kind kind_;
  store::Engine engine_;
  std::uint64_t now_ns_ = 1;
  std::map<std::size_t, std::unique_ptr<Client>> clients_;
  std::map<std::size_t, std::string> sent_;
  std::string rejection_;
};

// A stream passed whole and in pieces must give the same answers.
void compare_cuts(Kind kind, std::size_t cut, std::string_view stream) {
  Clients whole(kind);
  Clients pieces(kind);
  const bool whole_stays = whole.feed(0, stream);
  // Dialect A recognizes torch 2.1 by the bytes that arrive together with a delete, which depend on
  // the pieces.
  if (whole.rejection().find("torch 2.1") != std::string::npos) return;
  bool pieces_stay = true;
  for (std::size_t at = 0; at < stream.size() && pieces_stay; at += cut)
    pieces_stay = pieces.feed(0, stream.substr(at, cut));
  IVY_ASSERT(whole_stays == pieces_stay || stream.empty());
  IVY_ASSERT(whole.sent_to(0) == pieces.sent_to(0));
}

// Returns a frame with a valid header, so that scripts need not guess lengths.
std::string framed(Input& input) {
  std::string frame;
  const std::uint8_t op = input.byte();
  const std::uint8_t id = input.byte();
  store::append_frame(frame, {op, id}, input.bytes(input.byte()));
  return frame;
}

void play(Kind kind, Input& input) {
  Clients clients(kind);
  while (!input.done()) {
    const std::uint8_t step = input.byte();
    const std::size_t client_index = step % kClients;
    switch (step / 16) {
      case 12:
        clients.hang_up(client_index);
        break;
      case 13:
        clients.pass(input.byte());
        break;
      case 14:
        if (step % 16 == 0) clients.begin_generation();
        break;
      case 15: {
        const std::size_t high = input.byte();
        clients.feed(client_index, input.bytes(high * 256 + input.byte()));
        break;
      }
      default:
        if (kind == Kind::kNative && step >= 64) {
          clients.feed(client_index, framed(input));
        } else {
          clients.feed(client_index, input.bytes(input.byte()));
        }
    }
  }
}

// The first byte: even for a script; odd for one stream, with the size of its pieces.
void run(Kind kind, std::string_view bytes) {
  Input input(bytes);
  const std::uint8_t first = input.byte();
  if (first % 2 == 0) return play(kind, input);
  compare_cuts(kind, first / std::size_t{2} % 32 + 1, input.rest());
}

}  // namespace

void native_dialect(std::string_view bytes) { run(Kind::kNative, bytes); }
void torch_dialect_a(std::string_view bytes) { run(Kind::kTorchA, bytes); }
void torch_dialect_c(std::string_view bytes) { run(Kind::kTorchC, bytes); }

}  // namespace ivy::fuzz
