// SPDX-License-Identifier: Apache-2.0
// An asynchronous store client: each wait runs on its own connection and thread. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::store {

class KeyWaits {
 public:
  ~KeyWaits() { leave(); }

  // Connects to the store that the worker's environment variables name.
  Result<void> connect();
  void set(const std::string& key) { (void)client_->set(key, "1"); }
  // Calls `over` on another thread, with false if the store is lost or this client leaves. Blocks
  // while it connects; if that fails, it calls over(false) itself.
  void wait(std::vector<std::string> keys, std::function<void(bool)> over);
  // Cancels all waits and returns when their threads have exited.
  void leave();

 private:
  struct KeyWait {
    std::unique_ptr<Client> client;
    std::thread thread;
  };

  std::unique_ptr<Client> client_;
  std::vector<KeyWait> waits_;
};

}  // namespace ivy::store
