// SPDX-License-Identifier: Apache-2.0
// The status pages of processes that show what they do without being attached: those that use NCCL
// through its profiler plug-in (comm/nccl_profiler). Every process has a page of its own, with one
// slot, which stays readable after its death. A rank may have several such processes; of too many
// the oldest page is forgotten. Thread: the loop's.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/status_page.h"

namespace ivy {

// A page and its mapping here.
class SharedPage {
 public:
  static Result<std::unique_ptr<SharedPage>> make(const comm_status::PageShape& shape);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  int descriptor() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  comm_status::StatusPage& page() { return page_; }
  const comm_status::StatusPage& page() const { return page_; }

 private:
  SharedPage(Descriptor fd, void* memory, std::uint64_t bytes, comm_status::StatusPage page)
      : fd_(std::move(fd)), memory_(memory), bytes_(bytes), page_(page) {}

  Descriptor fd_;
  void* const memory_;
  const std::uint64_t bytes_;
  comm_status::StatusPage page_;
};

class ObservedPages {
 public:
  static constexpr std::size_t kMaxPerRank = 16;

  // The page of this process, made at its first call; it stays ours. pid 0: not known, and every
  // call gets a new one.
  Result<const SharedPage*> page_of(std::uint32_t rank, pid_t pid, std::uint32_t generation);
  void clear() { processes_.clear(); }

  // Adds where every process is in every communicator of NCCL.
  void add_places(std::uint64_t now_ns, HostEvidence& evidence) const;
  // Returns a rank whose device has worked on one operation for longer than the limit, once per
  // operation.
  std::optional<std::uint32_t> find_stall(std::uint64_t now_ns, std::uint64_t limit_ns);

 private:
  struct Process {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    std::unique_ptr<SharedPage> shared;
    std::uint64_t told_stall = 0;  // When the operation that was reported last began.
  };

  std::deque<Process> processes_;  // In the order of their first calls.
};

}  // namespace ivy
