// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/tcp/background_dial.h"

#include <unistd.h>

#include <utility>

#include "comm/contract/background_thread.h"
#include "proto/os/not_inherited.h"

namespace ivy::comm {

BackgroundDial::BackgroundDial(PeerConnections& connections, const std::string& address,
                               const PeerChannel& channel, const std::atomic<bool>& is_cancelled) {
  thread_ = background_thread([this, &connections, address, channel, &is_cancelled] {
    Result<PeerSocket> dialled = connections.dial(address, channel, 1, kUntilCancelled, [&] {
      return !is_ending_.load() && !is_cancelled.load();
    });
    const std::lock_guard lock(mutex_);
    dialled_ = std::move(dialled);
  });
}

BackgroundDial::~BackgroundDial() {
  is_ending_.store(true);
  thread_.join();
  if (dialled_ && dialled_->ok()) not_inherited::close((*dialled_)->socket);
}

std::optional<Result<PeerSocket>> BackgroundDial::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(dialled_, std::nullopt);
}

}  // namespace ivy::comm
