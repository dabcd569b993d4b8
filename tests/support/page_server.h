// SPDX-License-Identifier: Apache-2.0
// Replaces the supervisor for processes that only publish their operations: answers Observe on a
// socket with a page for each process, like agent/node/supervisor/observed_pages.h. Thread: runs on
// its own; pages() may be called from any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/status_page.h"

namespace ivy {

class PageServer {
 public:
  struct Page {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    comm_status::StatusPage page;
  };

  explicit PageServer(std::string path);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  const std::string& path() const { return path_; }
  std::vector<Page> pages() const;
  // Returns one line for each communicator of each page.
  std::string text() const;

 private:
  void serve();
  void answer(Descriptor connection);

  const std::string path_;
  Descriptor listener_;
  mutable std::mutex mutex_;
  std::vector<Page> pages_;
  std::map<pid_t, std::pair<int, std::size_t>> descriptors_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace ivy
