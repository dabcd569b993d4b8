// SPDX-License-Identifier: Apache-2.0
// This process's membership in the job: the store, the supervisor's control socket, and the state
// that the communicators of a world share.
//
// Thread: any after join(). Lifetime: outlives every communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/member.h"
#include "comm/group/world/control_client.h"
#include "comm/group/world/event_notifier.h"
#include "comm/group/world/status_rows.h"
#include "comm/group/world/store_records.h"
#include "comm/group/world/world_formation.h"
#include "comm/group/world/world_repairs.h"
#include "comm/join/bootstrap.h"
#include "comm/join/identity.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

class JobMember final : private WorldFactory, private LeftRanks {
 public:
  // Dials the store and the supervisor. Does not wait for other ranks.
  static Result<std::unique_ptr<JobMember>> join(Identity identity,
                                                 std::chrono::milliseconds timeout);
  ~JobMember() override;
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  // Collective over all ranks: waits for them; an error names the missing ones. A restarted process
  // waits for the survivors' grow instead.
  Result<World> form_world();
  // Replaces the current world, of which no communicator may be left. Collective over its survivors
  // and, for kGrow, the restarted processes. For the errors see repair.h; it may be called again
  // after an error. A timeout of zero means the timeout of join().
  Result<World> repair_world(RepairAim aim, std::chrono::milliseconds timeout);
  WorldRepairs& repairs() { return repairs_; }
  // The death that made form_world() fail, or nothing if it failed for another reason.
  const MaybeFailure& init_failure() const { return init_failure_; }

  const std::string& source() const { return source_; }  // The source that assigned this rank.
  store::Client* store() const { return store_.get(); }  // Null in a world of one.
  PeerConnections* connections() const {
    return connections_.get();
  }  // Null if all ranks are on one host.
  std::uint32_t tcp_streams() const { return network_info_.streams; }
  const MachineFacts& machine() const { return machine_; }
  StatusRows& rows() { return rows_; }
  StoreRecords& records() { return records_; }
  // Returns a key in the store that is unique to this world. Requires that all ranks have
  // synchronized.
  std::string key(const std::string& name) const { return records_.key(name); }
  // Notifies of events of the supervisor's page or, without a supervisor, of the store. Null if all
  // ranks are on one host.
  EventNotifier* notifier() const { return notifier_.get(); }

  std::unique_ptr<FailureDetector> make_failure_detector(const std::string& communicator,
                                                         const std::vector<Member>& members,
                                                         std::int32_t self);
  // Reports a failure of the whole communicator to the supervisor, if there is one.
  void report(const Failure& failure, const std::string& communicator);

 private:
  JobMember(Identity identity, std::chrono::milliseconds timeout);
  // How ranks of other hosts reach this one.
  struct NetworkInfo {
    PeerCredentials credentials;
    std::string first_host_address;
    std::uint32_t streams = 0;
  };
  Result<void> connect_to_store();
  Result<void> bootstrap_without_ivyrun();
  Result<void> attach_to_supervisor();
  Result<void> listen_to_peers(std::uint32_t rank);
  Result<World> form_repaired(const Identity& identity, std::chrono::milliseconds timeout,
                              RepairAttempt& attempt) override;
  void begin_world(const World& world);
  bool has_left(std::int32_t world_rank) const override;
  std::string name_in_page(const std::string& communicator) const;

  const Identity identity_;
  const std::chrono::milliseconds timeout_;
  const std::string source_;
  const std::uint32_t joined_;  // Number of times that this process has joined before.
  // Identifies this world in the job, so that an earlier world's keys in the store and rows in the
  // status page are not mistaken for this world's.
  std::string world_id_;
  MachineFacts machine_;
  NetworkInfo network_info_;
  MaybeFailure init_failure_;
  // Rank 0's store without ivyrun. Destroyed after store_.
  std::unique_ptr<PrivateStore> private_store_;
  std::unique_ptr<EndpointFile> endpoint_file_;  // Kept until all ranks have joined.
  std::unique_ptr<store::Client> store_;
  std::unique_ptr<ControlClient> control_;  // Null if there is no supervisor.
  std::unique_ptr<PeerConnections> connections_;
  // Destroyed before control_ and store_, which it watches.
  std::unique_ptr<EventNotifier> notifier_;
  StoreRecords records_;
  StatusRows rows_;
  WorldRepairs repairs_;
  // Only without a supervisor: the world's shared memory on this host, which shows the ranks that
  // have finalized, and the ranks that share it.
  std::shared_ptr<SharedSegment> world_segment_;
  std::vector<std::int32_t> world_members_;
};

}  // namespace ivy::comm
