// SPDX-License-Identifier: Apache-2.0
// An engine with numbered clients and a manual clock, so that tests read as scripts.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/engine/engine.h"

namespace ivy::test {

class EngineScript {
 public:
  explicit EngineScript(store::EngineLimits limits = {}) : engine(limits) {}

  store::ClientId join(std::optional<std::uint32_t> rank = std::nullopt,
                       store::Space space = store::Space::kNative, store::SessionId session = 0) {
    store::ClientInfo info;
    info.space = space;
    info.session = session;
    info.rank = rank;
    info.generation = engine.generation();
    info.address = "10.0.0.1:9";
    const Result<store::ClientId> id = engine.join(info, now_ns);
    EXPECT_TRUE(id.ok());
    return *id;
  }

  // Applies a request and keeps all replies.
  store::RequestId ask(store::ClientId client, store::Request request) {
    const store::RequestId id = next_request_++;
    store::Replies replies;
    engine.apply(client, id, std::move(request), now_ns, replies);
    keep(replies);
    return id;
  }
  void pass(std::uint64_t ns) {
    now_ns += ns;
    store::Replies replies;
    next_due_ns = engine.advance(now_ns, replies);
    keep(replies);
  }
  void begin_generation(std::uint32_t generation) {
    store::Replies replies;
    engine.begin_generation(generation, replies);
    keep(replies);
  }

  // Returns the last reply to a request, or null if it has none.
  const store::Reply* reply(store::RequestId id) const {
    for (const store::Reply& reply : kept_)
      if (reply.request == id) return &reply;
    return nullptr;
  }
  bool waits(store::RequestId id) const { return reply(id) == nullptr; }
  template <class Body>
  const Body* body(store::RequestId id) const {
    const store::Reply* found = reply(id);
    return found == nullptr ? nullptr : std::get_if<Body>(&found->body);
  }

  // Returns the answer as one word for tables: "done", "=value", "#3", "-" (waits), "!5" (the
  // error's code).
  std::string word(store::RequestId id) const {
    const store::Reply* found = reply(id);
    return found == nullptr ? "-" : word(*found);
  }
  std::string answer(store::ClientId client, store::Request request) {
    return word(ask(client, std::move(request)));
  }
  static std::string word(const store::Reply& reply) {
    if (const auto* value = std::get_if<store::Value>(&reply.body)) return "=" + value->bytes;
    if (const auto* number = std::get_if<store::Number>(&reply.body))
      return "#" + std::to_string(number->value);
    if (const auto* error = std::get_if<Error>(&reply.body))
      return "!" + std::to_string(static_cast<int>(error->code));
    if (const auto* compared = std::get_if<store::Compared>(&reply.body))
      return (compared->stored ? "stored=" : "kept=") + compared->current.value_or("(missing)");
    std::string text;
    if (const auto* values = std::get_if<store::Values>(&reply.body)) {
      for (const std::string& value : values->bytes) text += "=" + value;
      return text;
    }
    if (const auto* keys = std::get_if<store::Keys>(&reply.body)) {
      for (const std::string& key : keys->keys) text += key + " ";
      return text + (keys->more ? "..." : ".");
    }
    if (const auto* change = std::get_if<store::Changed>(&reply.body))
      return std::to_string(static_cast<int>(change->kind)) + ":" + change->key + "=" +
             change->value;
    return "done";
  }
  // Returns all replies to one request, in order.
  std::string all_words(store::RequestId id) const {
    std::string text;
    for (const store::Reply& reply : kept_)
      if (reply.request == id) text += (text.empty() ? "" : " ") + word(reply);
    return text;
  }
  std::string error_text(store::RequestId id) const {
    const Error* error = body<Error>(id);
    return error == nullptr ? "" : error->message;
  }
  // Returns the answered requests, in order.
  std::vector<store::RequestId> order() const {
    std::vector<store::RequestId> ids;
    for (const store::Reply& reply : kept_) ids.push_back(reply.request);
    return ids;
  }

  store::Engine engine;
  std::uint64_t now_ns = 1'000'000'000;
  std::uint64_t next_due_ns = store::kNever;

 private:
  void keep(store::Replies& replies) {
    for (store::Reply& reply : replies) kept_.push_back(std::move(reply));
  }

  store::Replies kept_;
  store::RequestId next_request_ = 1;
};

}  // namespace ivy::test
