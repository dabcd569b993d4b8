// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/dialects/connection.h"

#include <utility>

#include "rendezvous/dialects/http_dialect.h"

namespace ivy::store {
namespace {

constexpr std::string_view kPurpose = "store";

class NativeConnection : public Connection {
 public:
  NativeConnection(Engine& engine, const StoreIdentity& store, std::string address)
      : engine_(engine), store_(store), address_(std::move(address)) {}

  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) override {
    if (dialect_ != nullptr) return dialect_->receive(bytes, now_ns, out);
    greeting_.append(bytes);
    if (challenge_.empty()) IVY_CHECK(check_hello_begin(greeting_));
    if (challenge_.empty() && greeting_.size() >= kHelloBytes) IVY_CHECK(take_hello());
    if (!challenge_.empty() && greeting_.size() >= kHelloBytes + kProofBytes)
      return take_proof(now_ns, out);
    return {};
  }

  Result<void> reply(const Reply& reply) override {
    dialect_->reply(reply, unsent);
    return {};
  }
  bool has_more() const override { return dialect_ != nullptr && dialect_->has_more(); }
  bool overflow(const Reply& reply) override {
    engine_.end_watch(reply.client, reply.request);
    dialect_->reply({reply.client, reply.request, Changed{Changed::Kind::kOverflow, {}, {}}},
                    unsent);
    return true;
  }
  ClientId client() const override { return dialect_ == nullptr ? 0 : dialect_->client(); }
  bool is_authenticated() const override { return dialect_ != nullptr; }

 private:
  Result<void> take_hello() {
    hello_ = IVY_TRY(decode_hello(std::string_view(greeting_).substr(0, kHelloBytes)));
    // A greeting for another purpose uses another key; do not answer one that was meant for a peer.
    if (hello_.purpose != kPurpose) {
      return Error{Code::kUnauthenticated, "its handshake is for '" + hello_.purpose + "'"};
    }
    if (hello_.job_id != store_.job_id) {
      return Error{Code::kUnauthenticated, "it is a client of job " + hello_.job_id};
    }
    challenge_ = make_challenge(std::string_view(greeting_).substr(0, kHelloBytes), store_.token,
                                random_bytes(kNonceBytes), store_.epoch);
    unsent += challenge_;
    return {};
  }

  Result<void> take_proof(std::uint64_t now_ns, Replies& out) {
    const std::string_view arrived = greeting_;
    IVY_CHECK(check_proof(arrived.substr(0, kHelloBytes), challenge_,
                          arrived.substr(kHelloBytes, kProofBytes), store_.token));
    // A client of another generation gets the error about its generation instead: it may have
    // connected before its own store was ready.
    if (!store_.rejection.empty() && hello_.generation == engine_.generation()) {
      const Error rejection{Code::kAlreadyExists, store_.rejection};
      put_welcome(&rejection);
      return rejection;
    }
    ClientInfo info;
    info.generation = hello_.generation;
    if (hello_.rank != kNoRank) info.rank = hello_.rank;
    info.pid = hello_.pid;
    info.session = hello_.session;
    info.address = address_;
    Result<std::unique_ptr<NativeDialect>> dialect =
        NativeDialect::make(engine_, std::move(info), now_ns);
    put_welcome(dialect.ok() ? nullptr : &dialect.error());
    if (!dialect.ok()) return dialect.error();
    dialect_ = std::move(*dialect);
    const std::string rest(arrived.substr(kHelloBytes + kProofBytes));
    greeting_ = {};
    return rest.empty() ? Result<void>() : dialect_->receive(rest, now_ns, out);
  }

  // Sends reply number 0: the welcome, or the reason for the rejection.
  void put_welcome(const Error* rejection) {
    std::string text;
    if (rejection != nullptr) put_text(text, rejection->message);
    const auto kind =
        rejection == nullptr ? std::uint8_t{0} : static_cast<std::uint8_t>(rejection->code);
    append_frame(unsent, {kind, 0}, text);
  }

  Engine& engine_;
  const StoreIdentity& store_;
  const std::string address_;
  std::string greeting_;  // At most one read's worth beyond hello and proof.
  HandshakeHello hello_;
  std::string challenge_;
  std::unique_ptr<NativeDialect> dialect_;
};

// Connections of torch's store and, if the first bytes are HTTP, of Horovod's.
class TorchConnection : public Connection {
 public:
  TorchConnection(Engine& engine, std::string address)
      : dialect_(engine, engine.generation(), address),
        engine_(engine),
        address_(std::move(address)) {}
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) override {
    if (!std::exchange(has_begun_, has_begun_ || !bytes.empty()) && begins_http(bytes))
      http_ = std::make_unique<HttpDialect>(engine_, address_);
    if (http_ != nullptr) return http_->receive(bytes, now_ns, unsent, out);
    return dialect_.receive(bytes, now_ns, out);
  }
  Result<void> reply(const Reply& reply) override { return dialect_.reply(reply, unsent); }
  bool has_more() const override { return dialect_.has_more(); }
  bool is_over() const override { return http_ != nullptr && http_->is_over(); }
  std::size_t kept_bytes() const override {
    return http_ == nullptr ? dialect_.kept_bytes() : http_->kept_bytes();
  }
  ClientId client() const override {
    return http_ == nullptr ? dialect_.client() : http_->client();
  }
  // torch cannot authenticate, so no connection is dropped as unauthenticated. A client of torch
  // 2.0 or earlier also keeps a second connection on which it sends nothing.
  bool is_authenticated() const override { return true; }

 private:
  TorchDialect dialect_;
  Engine& engine_;
  const std::string address_;
  bool has_begun_ = false;
  std::unique_ptr<HttpDialect> http_;
};

}  // namespace

std::unique_ptr<Connection> make_native_connection(Engine& engine, const StoreIdentity& store,
                                                   std::string address) {
  return std::make_unique<NativeConnection>(engine, store, std::move(address));
}

std::unique_ptr<Connection> make_torch_connection(Engine& engine, std::string address) {
  return std::make_unique<TorchConnection>(engine, std::move(address));
}

}  // namespace ivy::store
