// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/host_stores.h"

#include <utility>

namespace ivy {
namespace {

// One for each TCPStore of a rank, two in torch up to 2.0, and those that a script makes for
// itself; the rest is spare.
std::uint32_t torch_connections_for(std::uint32_t ranks) { return 4 * ranks + 64; }

}  // namespace

StoreProcess::Handlers HostStores::handlers() const {
  const auto note = [send = send_](const std::string& text, bool is_stall) {
    Event event;
    event.mutable_note()->set_warning(is_stall);
    event.mutable_note()->set_store_stall(is_stall);
    event.mutable_note()->set_text(is_stall ? text : "store: " + text);
    send(event);
  };
  const auto lost = [send = send_](const std::string& why) {
    Event event;
    event.mutable_store_lost()->set_why(why);
    send(event);
  };
  return {spare_, note, lost};
}

void HostStores::open_store(const OpenStore& request, const std::string& job_id,
                            const JobDirectory& directory, std::uint16_t port,
                            std::uint16_t torch_port) {
  StoreRequest store;
  store.job_id = job_id;
  store.token_file = directory.token_file();
  store.generation = request.generation();
  store.addresses.assign(request.addresses().begin(), request.addresses().end());
  store.port = port;
  store.torch_port = torch_port;
  store.torch_peers.assign(request.torch_peers().begin(), request.torch_peers().end());
  store.torch_connections = torch_connections_for(request.world_size());
  store.stall_seconds = request.stall_seconds();
  store.in_step = in_step_;
  Result<std::shared_ptr<StoreProcess>> opened =
      StoreProcess::listen(loop_, std::move(store), handlers());
  Event event;
  StoreOpened& answer = *event.mutable_store_opened();
  if (!opened.ok()) {
    answer.set_error(opened.error().message);
    answer.set_code(static_cast<std::uint32_t>(opened.error().code));
  }
  if (opened.ok()) store_ = std::move(*opened);
  send_(event);
}

void HostStores::begin_generation(std::uint32_t generation) {
  const auto begun = [send = send_, generation] {
    Event event;
    event.mutable_generation_begun()->set_generation(generation);
    send(event);
  };
  if (!store_) return begun();
  store_->begin_generation(generation, begun);
}

void HostStores::rank_gone(std::uint32_t rank, std::uint32_t rejoins) {
  if (store_) store_->put("ivy/gone/" + std::to_string(rank), std::to_string(rejoins));
}

void HostStores::reaped(pid_t pid, int wait_status) {
  if (store_ && pid == store_->pid()) store_->ended(wait_status);
}

void HostStores::spare_from(const std::function<void(pid_t)>& containment) const {
  if (store_ && store_->pid() != 0) containment(store_->pid());
}

void HostStores::end() { store_.reset(); }

}  // namespace ivy
