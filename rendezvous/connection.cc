#include "rendezvous/connection.h"

#include <utility>

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
    if (challenge_.empty() && greeting_.size() >= kHelloBytes) IVY_CHECK(take_hello());
    if (!challenge_.empty() && greeting_.size() >= kHelloBytes + kProofBytes)
      return take_proof(now_ns, out);
    if (challenge_.empty() && !greeting_.starts_with(kHandshakeMagic.substr(0, greeting_.size())))
      return Error{Code::kInvalidArgument, "the first bytes are no greeting of ours"};
    return {};
  }

  Result<void> reply(const Reply& reply) override {
    dialect_->reply(reply, unsent);
    return {};
  }
  bool has_more() const override { return dialect_ != nullptr && dialect_->has_more(); }
  bool overflow(const Reply& reply) override {
    engine_.end_watch(reply.client, reply.request);
    dialect_->reply({reply.client, reply.request, Changed{Changed::What::kOverflow, {}, {}}},
                    unsent);
    return true;
  }
  ClientId client() const override { return dialect_ == nullptr ? 0 : dialect_->client(); }
  bool is_authenticated() const override { return dialect_ != nullptr; }

 private:
  Result<void> take_hello() {
    hello_ = IVY_TRY(decode_hello(std::string_view(greeting_).substr(0, kHelloBytes)));
    // Another purpose has another key: a greeting meant for a peer must not be answered here.
    if (hello_.purpose != kPurpose) {
      return Error{Code::kUnauthenticated, "a greeting for '" + hello_.purpose + "'"};
    }
    if (hello_.job_id != store_.job_id) {
      return Error{Code::kUnauthenticated, "a client of job " + hello_.job_id};
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
    ClientInfo info;
    info.generation = hello_.generation;
    if (hello_.rank != kNoRank) info.rank = hello_.rank;
    info.pid = hello_.pid;
    info.address = address_;
    Result<std::unique_ptr<NativeDialect>> dialect =
        NativeDialect::make(engine_, std::move(info), now_ns);
    // The welcome, or why there is none: reply number 0.
    std::string refusal;
    if (!dialect.ok()) put_text(refusal, dialect.error().message);
    const auto kind =
        dialect.ok() ? std::uint8_t{0} : static_cast<std::uint8_t>(dialect.error().code);
    append_frame(unsent, {kind, 0}, refusal);
    if (!dialect.ok()) return dialect.error();
    dialect_ = std::move(*dialect);
    const std::string rest(arrived.substr(kHelloBytes + kProofBytes));
    greeting_ = {};
    return rest.empty() ? Result<void>() : dialect_->receive(rest, now_ns, out);
  }

  Engine& engine_;
  const StoreIdentity& store_;
  const std::string address_;
  std::string greeting_;  // At most what one read brings beyond hello and proof.
  HandshakeHello hello_;
  std::string challenge_;
  std::unique_ptr<NativeDialect> dialect_;
};

class TorchConnection : public Connection {
 public:
  TorchConnection(Engine& engine, std::string address)
      : dialect_(engine, engine.generation(), std::move(address)) {}
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) override {
    return dialect_.receive(bytes, now_ns, out);
  }
  Result<void> reply(const Reply& reply) override { return dialect_.reply(reply, unsent); }
  bool has_more() const override { return dialect_.has_more(); }
  ClientId client() const override { return dialect_.client(); }
  // Nobody can be; a client of torch 2.0 or before keeps a second connection on which it says
  // nothing.
  bool is_authenticated() const override { return true; }

 private:
  TorchDialect dialect_;
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
