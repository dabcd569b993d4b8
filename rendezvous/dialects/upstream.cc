#include "rendezvous/dialects/upstream.h"

#include <utility>

#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/codec.h"

namespace ivy::store {

void Upstream::put(std::size_t kind, std::uint32_t id, std::string_view payload) {
  append_frame(unsent_, {static_cast<std::uint8_t>(kind), id}, payload);
}

std::uint32_t Upstream::add(UpRequest note) {
  while (++last_id_ == 0 || open_.contains(last_id_)) continue;
  note.id = last_id_;
  open_[last_id_] = std::move(note);
  sent_ += 1;
  return last_id_;
}

std::uint32_t Upstream::request(const Request& body, UpRequest note, std::uint64_t now_ns) {
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(note.asker.client));
  put_leaf_request(payload, body, now_ns);
  const std::uint32_t id = add(std::move(note));
  put(static_cast<std::size_t>(LeafOp::kFirstRequest) + body.index(), id, payload);
  return id;
}

// Asks like a check of the key.
std::uint32_t Upstream::follow(UpRequest note) {
  std::string payload;
  put_u8(payload, static_cast<std::uint8_t>(note.space));
  put_text(payload, note.checks);
  const std::uint32_t id = add(std::move(note));
  put(static_cast<std::size_t>(LeafOp::kFollow), id, payload);
  return id;
}

void Upstream::cancel(ClientId client, std::uint32_t id) {
  open_.erase(id);
  UpRequest silent;
  silent.asker.client = client;
  silent.is_silent = true;
  request(Cancel{id, {}}, std::move(silent), 0);
}

void Upstream::tell(LeafOp op, std::string_view payload) {
  sent_ += op == LeafOp::kCompanions ? 1 : 0;
  put(static_cast<std::size_t>(op), 0, payload);
}

UpRequest* Upstream::find(std::uint32_t id) {
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : &found->second;
}

}  // namespace ivy::store
