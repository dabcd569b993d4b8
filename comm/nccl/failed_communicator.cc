// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/failed_communicator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/nccl/abandonable_call.h"

namespace ivy::comm::nccl {
namespace {

// Makes a call on a new thread; the call must own everything that it uses. Returns false, and
// taints the process, if the call did not return within kAbortTimeout.
bool ends_in_time(const char* what, std::function<void()> call) {
  struct Attempt {
    std::mutex mutex;
    std::condition_variable has_returned;
    bool is_done = false;
  };
  const auto attempt = std::make_shared<Attempt>();
  std::thread calling = background_thread([attempt, call = std::move(call)] {
    call();
    const std::lock_guard done(attempt->mutex);
    attempt->is_done = true;
    attempt->has_returned.notify_all();
  });
  calling.detach();
  std::unique_lock waiting(attempt->mutex);
  if (attempt->has_returned.wait_for(waiting, kAbortTimeout, [&] { return attempt->is_done; })) {
    return true;
  }
  set_tainted(std::string(what) + " did not return within " +
              std::to_string(kAbortTimeout.count()) + " s: exit this process");
  return false;
}

}  // namespace

std::optional<std::string> abort_failed(const FailedCommunicator& broken) {
  broken.regions->forget();
  ends_in_time("ncclCommAbort", [broken] {
    const Driver::Current current(*broken.driver, broken.device);
    broken.functions->abort(broken.handle);
  });
  return taint();
}

std::unique_ptr<RevokedHandle> RevokedHandle::revoke(const FailedCommunicator& broken) {
  if (broken.functions->revoke == nullptr || broken.functions->shrink == nullptr) return nullptr;
  const auto status = std::make_shared<std::atomic<Status>>(kInProgress);
  const bool is_in_time = ends_in_time("ncclCommRevoke", [broken, status] {
    const Driver::Current current(*broken.driver, broken.device);
    Status found = broken.functions->revoke(broken.handle, 0);
    while (found == kInProgress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (broken.functions->get_async_error(broken.handle, &found) != kSuccess) return;
    }
    // If the proxy has noticed that the peer's connection closed, its error remains: ncclCommShrink
    // would return it on this rank, and wait for this rank on the others.
    Status stays = kSuccess;
    if (broken.functions->get_async_error(broken.handle, &stays) != kSuccess) return;
    *status = found != kSuccess ? found : stays;
  });
  if (!is_in_time || *status != kSuccess) return nullptr;
  return std::unique_ptr<RevokedHandle>(new RevokedHandle(broken));
}

}  // namespace ivy::comm::nccl
