// A communicator: this process's seat in a group of ranks, and its collectives. Values are checked
// before they come here (ivycomm.cc); what can fail here breaks the communicator.
//
// Which way an operation takes is decided by where its ranks are, never by time:
//   one rank           copies
//   one host           comm/collectives/shared_*: shared memory
//   several hosts      comm/collectives/spanning_*: shared memory inside, TCP between hosts
//
// Thread: any; operations are carried out one at a time, in the order of the calls. Lifetime: no
// call may be under way when it is destroyed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/coalesced.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/spanning_collectives.h"
#include "comm/contract/failure.h"
#include "comm/contract/fast_clock.h"
#include "comm/contract/fingerprint.h"
#include "comm/contract/seat.h"
#include "comm/group/point_to_point.h"
#include "comm/group/work.h"
#include "comm/nccl/operation.h"
#include "comm/transports/alarm.h"
#include "comm/transports/shared_group.h"
#include "comm/transports/tcp_mesh.h"
#include "proto/contract/status.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

class Job;
class RollCall;
struct DeviceSide;
struct EnteredOperations;
namespace nccl {
class DeviceCommunicator;
struct DeviceCommunicatorOptions;
}  // namespace nccl

struct CallOptions {
  std::chrono::nanoseconds timeout{0};  // Zero: the communicator's.
  bool is_async = false;
  double factor = 1;  // PREMUL_SUM.
};

// The result of a call: an outcome, or (is_async) work under way.
struct Called {
  Outcome outcome;
  std::shared_ptr<Work> work;
};

class Communicator : private EntryWatch {
 public:
  // `local` is null where no other rank of it is on this host. `job` outlives it.
  Communicator(Job& job, std::string name, std::vector<Seat> seats, std::int32_t rank,
               std::unique_ptr<Alarm> alarm, std::unique_ptr<SharedGroup> local,
               std::chrono::nanoseconds timeout);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return static_cast<std::int32_t>(seats_.size()); }
  std::int32_t local_rank() const { return local_rank_; }
  std::int32_t local_size() const { return static_cast<std::int32_t>(local_ranks_.size()); }
  std::int32_t node_rank() const { return node_rank_; }
  std::int32_t node_count() const { return node_count_; }
  std::int32_t world_rank(std::int32_t rank) const;
  Job& job() const { return job_; }

  // Counts are numbers of elements; ivycomm.h says what each operation does. An operation is in
  // place where `send` is `receive`, or this rank's part of it.
  Called barrier(const CallOptions& options);
  Called all_reduce(const void* send, void* receive, std::size_t count, Dtype dtype, ReduceOp op,
                    const CallOptions& options);
  Called reduce(const void* send, void* receive, std::size_t count, Dtype dtype, ReduceOp op,
                std::int32_t root, const CallOptions& options);
  Called broadcast(void* buffer, std::size_t count, Dtype dtype, std::int32_t root,
                   const CallOptions& options);
  // `blocks`: of every rank, in bytes.
  Called all_gather(const OperationShape& shape, const void* send, void* receive,
                    const Blocks& blocks, const CallOptions& options);
  Called reduce_scatter(const OperationShape& shape, const void* send, void* receive,
                        const Ranges& ranges, const CallOptions& options);
  Called gather(const OperationShape& shape, const void* send, std::size_t send_bytes,
                void* receive, const Blocks& blocks, const CallOptions& options);
  Called scatter(const OperationShape& shape, const void* send, const Blocks& blocks, void* receive,
                 std::size_t receive_bytes, const CallOptions& options);
  Called all_to_all(const OperationShape& shape, const void* send, const Blocks& send_blocks,
                    void* receive, const Blocks& receive_blocks, const CallOptions& options);
  Called scan(const void* send, void* receive, std::size_t count, Dtype dtype, ReduceOp op,
              const CallOptions& options);

  // Several all_reduces as one: the parts one after the other.
  Called all_reduce_coalesced(std::vector<const void*> send, std::vector<void*> receive,
                              std::vector<std::size_t> counts, Dtype dtype, ReduceOp op,
                              const CallOptions& options);

  // Device memory is served in communicator_device.cc.
  Called on_device(nccl::DeviceOperation operation, const CallOptions& options);
  // Makes what the first operation on device memory would make.
  Called prepare_device(int device, const CallOptions& options);

  // Messages are not in order with the collectives. Blocks until all are done.
  Outcome exchange_messages(const std::vector<std::shared_ptr<MessageRequest>>& requests,
                            const CallOptions& options);
  void post_message(const std::shared_ptr<MessageRequest>& request, const CallOptions& options);

  // Groups are made collectively; null: this rank is in none.
  Result<std::unique_ptr<Communicator>> make_group(std::span<const std::int32_t> ranks);
  Result<std::unique_ptr<Communicator>> split(std::int32_t color, std::int32_t key);

  // Call it before destruction: waits for what was left on the device's streams, and ends NCCL's
  // part.
  Outcome settle_device();
  // As settle_device(); and if this rank could leave the last operation before the others came (a
  // broadcast, say), waits until they have come, and fails if theirs was another one.
  Outcome part();
  // As part(), for a group, in which any rank may end its seat at any time: compares the last
  // operation with that of the ranks that have called theirs, and waits for no other rank. So the
  // rank that ends its seat last is told of a mismatch.
  Outcome leave();

  // Breaks it here and on every other rank, unless it is broken already.
  void abort(const std::string& reason);
  // Nothing: the communicator is not broken.
  std::optional<Failure> failure();

 private:
  template <class Body>
  Called run(const OperationShape& shape, const CallOptions& options, const Body& body);
  template <class Body>
  Outcome perform(const OperationShape& shape, std::chrono::nanoseconds timeout, const Body& body);
  void entered() override;  // Notes the operation, once, in the status page.
  Outcome broken(const Failure& found);
  void hang_up_after_abort();
  std::optional<Failure> compare();
  void add_place(Failure& failure) const;
  Outcome end_badly(const OperationCall& call, const std::exception_ptr& thrown);
  Failure own_failure(const std::exception_ptr& thrown, const OperationCall& call) const;
  PointToPoint& messages();
  Outcome finish_messages();
  std::vector<TcpPeer> tcp_peers() const;
  void span_hosts();
  bool meet(const OperationCall& call);
  bool all_reduce_to(const OperationCall& call, const ReduceRule& how, const void* send,
                     void* receive, std::size_t count);
  bool all_reduce_parts(const OperationCall& call, const ReduceRule& how,
                        const std::vector<const void*>& send, const std::vector<void*>& receive,
                        const std::vector<std::size_t>& counts);
  bool reduce_scatter_to(const OperationCall& call, const ReduceRule& how, const void* send,
                         void* receive, const Ranges& ranges);
  ReduceRule rule(Dtype dtype, ReduceOp op, const CallOptions& options) const;
  bool exchange_text(const OperationCall& call, const std::string& own,
                     std::vector<std::string>& all);
  bool agree_on_trouble(const OperationCall& call, std::string& trouble);
  bool try_to_share(const OperationCall& call, const std::vector<std::int32_t>& local_ranks,
                    bool is_named, std::unique_ptr<SharedSegment>& segment, std::string& trouble);
  Result<std::unique_ptr<Communicator>> make_child(const std::string& name,
                                                   const std::vector<std::int32_t>& ranks);
  Result<std::unique_ptr<SharedSegment>> share_segment(
      const std::vector<std::int32_t>& local_ranks);
  std::string child_name(std::int32_t color);
  Called run_any(const OperationShape& shape, const CallOptions& options,
                 const std::function<bool(const OperationCall&)>& body);

  bool carry_out_on_device(const OperationCall& call, const nccl::DeviceOperation& operation);
  bool carry_out_staged(const OperationCall& call, const nccl::DeviceOperation& operation);
  bool carry_out_on_host(const OperationCall& call, const nccl::DeviceOperation& operation,
                         char* send, char* receive);
  bool move_on_host(const OperationCall& call, const nccl::DeviceOperation& operation, char* send,
                    char* receive);
  bool fail_on_device(Failure failure, const OperationCall& call);
  void break_device();
  std::optional<Failure> device_trouble();
  bool has_ended_well(const Failure& found) const;
  nccl::DeviceCommunicatorOptions device_options();
  nccl::DeviceCommunicator& device_communicator();
  Result<nccl::Stream> stream_behind(nccl::Stream stream, int device);
  Result<std::unique_ptr<nccl::DeviceCommunicator>> split_device(std::int32_t color,
                                                                 std::int32_t key,
                                                                 const std::string& name);
  Outcome end_device();
  void adopt_device(std::unique_ptr<nccl::DeviceCommunicator> device);

  Job& job_;
  const std::string name_;
  const std::vector<Seat> seats_;
  const std::int32_t rank_;
  std::vector<std::int32_t> local_ranks_;  // Ranks of this host, in order.
  std::int32_t local_rank_ = 0;
  std::int32_t node_rank_ = 0;
  std::int32_t node_count_ = 1;
  const std::chrono::nanoseconds timeout_;
  const std::unique_ptr<Alarm> alarm_;

  std::mutex turn_;                           // Guards what is below: one operation at a time.
  const std::unique_ptr<SharedGroup> local_;  // Null: alone on this host.
  // This communicator's row of the supervisor's page.
  const std::optional<std::uint32_t> status_row_;
  const std::uint32_t name_hash_;  // The communicator's name in that row, hashed.
  std::unique_ptr<TcpMesh> mesh_;  // Null, as spanning_: all ranks are on one host.
  std::unique_ptr<SpanningGroup> spanning_;
  // Null, as roll_call_: one host, where all ranks see each other.
  std::unique_ptr<EnteredOperations> entered_;
  std::unique_ptr<RollCall> roll_call_;
  bool may_be_ahead_ = false;  // The last operation did not need all ranks to be in it.
  std::uint64_t sequence_ = 0;
  std::optional<comm_status::SlotView> slot_;  // The slot that has status_row_.
  comm_status::OperationRecord record_;        // What the slot shows.
  const OperationShape* not_noted_ = nullptr;  // The operation that it does not show yet.
  FastClock clock_;
  std::uint64_t children_ = 0;
  PartsScratch parts_scratch_;

  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> is_broken_{false};
  // For an abort by this process between hosts: a peer that finds the connection gone asks for the
  // failure, so no thread hangs up before that is told. The interrupted operation may end
  // meanwhile; it leaves the hanging up to the aborting thread.
  std::atomic<int> telling_{0};  // Threads that are aborting.
  std::atomic<bool> is_to_hang_up_{false};

  std::mutex messages_mutex_;
  // A row of the supervisor's page for messages. Guarded by messages_mutex_, as the next.
  std::optional<std::uint32_t> message_row_;
  std::unique_ptr<PointToPoint> messages_;  // Null: never used.

  const std::unique_ptr<DeviceSide> device_;

  WorkQueue queue_;  // Declared last, so that it is destroyed first.
};

}  // namespace ivy::comm
