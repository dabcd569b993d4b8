// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/app_keys.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace ivy {
namespace {

std::string done_key(std::uint32_t rank) { return "app/done/" + std::to_string(rank); }

}  // namespace

AppKeys::AppKeys(std::uint32_t rank, AppStore& store)
    : rank_(rank), store_(store), event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool AppKeys::connect() {
  const Result<void> connected = store_.connect();
  if (!connected.ok())
    std::fprintf(stderr, "ivyrun: error[IVY-R018]: the job's store cannot be reached: %s\n",
                 connected.error().message.c_str());
  return connected.ok();
}

void AppKeys::empty_descriptor() const {
  std::uint64_t count = 0;
  (void)!read(event_fd_.get(), &count, sizeof count);
}

void AppKeys::announce_done() { store_.set(done_key(rank_)); }

void AppKeys::watch_done(std::uint32_t ranks) {
  std::vector<std::string> keys;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) keys.push_back(done_key(rank));
  watch(std::move(keys), done_);
}

bool AppKeys::is_lost() const {
  return ready_ == State::kLost || ended_ == State::kLost || done_ == State::kLost;
}

void AppKeys::watch(std::vector<std::string> keys, std::atomic<State>& state) {
  store_.wait(std::move(keys), [this, &state](bool is_present) {
    state = is_present ? State::kPresent : State::kLost;
    const std::uint64_t one = 1;
    (void)!write(event_fd_.get(), &one, sizeof one);
  });
}

}  // namespace ivy
