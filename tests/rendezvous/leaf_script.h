// A store, one leaf and what is under way between them, without sockets: tests read as scripts.
// Nothing moves by itself: up() carries what the leaf has sent, down() what the store has answered.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/dialects/leaf.h"
#include "rendezvous/dialects/leaf_dialect.h"
#include "tests/rendezvous/engine_fixture.h"

namespace ivy::test {

class LeafScript {
 public:
  explicit LeafScript(store::LeafLimits limits = {}, std::size_t cut = 0)
      : leaf(0, limits), cut_(cut) {
    dial();
  }
  // The leaf's connection is another one; its clients have left before.
  void dial() {
    dialect.reset();
    under_way.clear();
    leaf.unsent.clear();
    Result<std::unique_ptr<store::LeafDialect>> made =
        store::LeafDialect::make(direct.engine, 0, "10.0.0.2:4000", direct.now_ns);
    EXPECT_TRUE(made.ok());
    dialect = std::move(*made);
  }

  // A client of the leaf.
  store::ClientId join(std::optional<std::uint32_t> rank = std::nullopt,
                       store::Space space = store::Space::kNative,
                       const std::string& address = "127.0.0.1:777", store::SessionId session = 0) {
    store::ClientInfo info;
    info.space = space;
    info.rank = rank;
    info.address = address;
    info.session = session;
    return leaf.join(info, direct.now_ns).value();
  }
  store::RequestId ask(store::ClientId client, store::Request request) {
    const store::RequestId id = next_request_++;
    store::Replies replies;
    leaf.apply(client, id, std::move(request), direct.now_ns, replies);
    keep(replies);
    return id;
  }
  // Asked, and whatever it causes carried to its end.
  std::string answer(store::ClientId client, store::Request request) {
    const store::RequestId id = ask(client, std::move(request));
    settle();
    return word(id);
  }
  void up() {
    std::string bytes = std::exchange(leaf.unsent, {});
    while (!bytes.empty()) {
      const std::size_t piece = cut_ == 0 ? bytes.size() : std::min(cut_, bytes.size());
      store::Replies replies;
      const Result<void> taken =
          dialect->receive(std::string_view(bytes).substr(0, piece), direct.now_ns, replies);
      EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().message);
      say(replies);
      bytes.erase(0, piece);
      while (dialect->has_more()) {
        store::Replies more;
        EXPECT_TRUE(dialect->receive({}, direct.now_ns, more).ok());
        say(more);
      }
    }
  }
  // Replies of the engine, to whomever: those to the leaf's clients are on their way then.
  void say(store::Replies& replies) {
    for (const store::Reply& reply : replies) dialect->reply(reply, under_way);
  }
  void down() {
    std::string bytes = std::exchange(under_way, {});
    while (!bytes.empty()) {
      const std::size_t piece = cut_ == 0 ? bytes.size() : std::min(cut_, bytes.size());
      store::Replies replies;
      EXPECT_TRUE(
          leaf.receive(std::string_view(bytes).substr(0, piece), direct.now_ns, replies).ok());
      keep(replies);
      bytes.erase(0, piece);
    }
  }
  void settle() {
    while (!leaf.unsent.empty() || !under_way.empty()) {
      up();
      down();
    }
  }
  void pass(std::uint64_t ns) {
    direct.now_ns += ns;
    store::Replies replies;
    direct.engine.advance(direct.now_ns, replies);
    say(replies);
    store::Replies own;
    leaf.advance(direct.now_ns, own);
    keep(own);
  }
  // A client that is connected to the store itself. Its own answers are not kept.
  std::string at_the_store(store::Request request, store::Space space = store::Space::kNative) {
    store::ClientInfo info;
    info.space = space;
    const store::ClientId client = direct.engine.join(info, direct.now_ns).value();
    store::Replies replies;
    direct.engine.apply(client, 1, std::move(request), direct.now_ns, replies);
    std::string own = "-";
    store::Replies others;
    for (store::Reply& reply : replies) {
      if (reply.client == client) {
        own = EngineScript::word(reply);
      } else {
        others.push_back(std::move(reply));
      }
    }
    say(others);
    direct.engine.leave(client);
    return own;
  }

  std::string word(store::RequestId id) const {
    for (const store::Reply& reply : kept_)
      if (reply.request == id) return EngineScript::word(reply);
    return "-";
  }
  std::string all_words(store::RequestId id) const {
    std::string text;
    for (const store::Reply& reply : kept_)
      if (reply.request == id) text += (text.empty() ? "" : " ") + EngineScript::word(reply);
    return text;
  }
  std::string error_text(store::RequestId id) const {
    for (const store::Reply& reply : kept_)
      if (const auto* error = std::get_if<Error>(&reply.body);
          reply.request == id && error != nullptr)
        return error->message;
    return "";
  }
  // Frames of requests that have gone up since the last call.
  std::uint64_t forwarded() {
    const std::uint64_t now = leaf.counts().forwarded;
    return now - std::exchange(forwarded_, now);
  }

  EngineScript direct;
  std::unique_ptr<store::LeafDialect> dialect;
  store::Leaf leaf;
  std::string under_way;

 private:
  void keep(store::Replies& replies) {
    for (store::Reply& reply : replies) kept_.push_back(std::move(reply));
  }

  const std::size_t cut_;
  store::Replies kept_;
  store::RequestId next_request_ = 1;
  std::uint64_t forwarded_ = 0;
};

}  // namespace ivy::test
