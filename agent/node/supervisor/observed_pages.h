// SPDX-License-Identifier: Apache-2.0
// The status pages of processes that publish their operations without being attached: users of NCCL
// with our profiler plug-in (comm/nccl_profiler). Every process has its own page with one slot,
// which stays readable after the process exits. A rank may have several such processes; beyond a
// limit the oldest page is dropped. Thread: the loop's.
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

// A page and its mapping in this process.
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

// Converts an operation of a status page to its form in job.proto. `slot` is the record's slot,
// which contains the name of its communicator. Pure.
void describe_operation(const comm_status::OperationRecord& record,
                        const comm_status::SlotView& slot, std::uint64_t now_ns,
                        OperationState& out);

class ObservedPages {
 public:
  static constexpr std::size_t kMaxPerRank = 16;

  // Returns the page of this process, creating it on the first call; the page belongs to this
  // object. With pid 0 (unknown), every call creates a page.
  Result<const SharedPage*> page_of(std::uint32_t rank, pid_t pid, std::uint32_t generation);
  void clear() { processes_.clear(); }

  // Adds the position of every process in every communicator of NCCL.
  void add_places(std::uint64_t now_ns, HostEvidence& evidence) const;
  // Returns a rank whose device has worked on one operation for longer than the limit, once per
  // operation.
  std::optional<std::uint32_t> find_stall(std::uint64_t now_ns, std::uint64_t limit_ns);

 private:
  struct Process {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    std::unique_ptr<SharedPage> shared;
    std::uint64_t last_stall_ns = 0;  // Start of the operation that was reported last.
  };

  std::deque<Process> processes_;  // In the order of their first calls.
};

}  // namespace ivy
