// SPDX-License-Identifier: Apache-2.0
// Returns credit to hosts: sums up the bytes of each host's output that were written or dropped,
// and lets the host send as many more, once per turn of the loop. While the file system of the log
// files is too slow, hosts get no credit. Thread: the loop's.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "launcher/screen/output_events.h"

namespace ivy {

class HostCredit {
 public:
  // Calls owner.output_consumed() from the loop, never from add(): granting may send, and sending
  // may call the caller of add(). may_grant: false while hosts have to wait for the file system;
  // call report() when they no longer do.
  HostCredit(boost::asio::io_context& loop, OutputEvents& owner, std::function<bool()> may_grant)
      : loop_(loop), owner_(owner), may_grant_(std::move(may_grant)) {}
  ~HostCredit() { *alive_ = false; }

  // The next `bytes` bytes that add() gets are shown a second time; the host got credit for them
  // before.
  void repeat(int host_index, std::uint64_t bytes) { repeated_[host_index] += bytes; }
  // Call when bytes of the host's output were written or dropped.
  void add(int host_index, std::uint64_t bytes) {
    bytes -= take_repeated(host_index, bytes);
    if (bytes == 0) return;
    granted_later_[host_index] += bytes;
    if (std::exchange(is_scheduled_, true)) return;
    boost::asio::post(loop_, [this, alive = alive_] {
      if (*alive) report();
    });
  }
  // Grants what the hosts are owed.
  void report() {
    is_scheduled_ = false;
    if (!may_grant_()) return;
    const std::map<int, std::uint64_t> owed = std::exchange(granted_later_, {});
    for (const auto& [host_index, bytes] : owed) owner_.output_consumed(host_index, bytes);
  }

 private:
  std::uint64_t take_repeated(int host_index, std::uint64_t max_bytes) {
    const auto found = repeated_.find(host_index);
    if (found == repeated_.end()) return 0;
    const std::uint64_t bytes = std::min(found->second, max_bytes);
    found->second -= bytes;
    return bytes;
  }

  boost::asio::io_context& loop_;
  OutputEvents& owner_;
  const std::function<bool()> may_grant_;
  // By host: bytes that were added and not granted yet.
  std::map<int, std::uint64_t> granted_later_;
  std::map<int, std::uint64_t> repeated_;  // By host: see repeat().
  bool is_scheduled_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
