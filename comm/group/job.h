// This process's place in the job: the store, the supervisor's control socket, and the world
// communicator that comes out of both.
//
// Thread: any after join(). Lifetime: outlives every communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives/selector.h"
#include "comm/contract/caches.h"
#include "comm/contract/entered_operations.h"
#include "comm/contract/processors.h"
#include "comm/contract/seat.h"
#include "comm/group/control_client.h"
#include "comm/group/job_bell.h"
#include "comm/join/identity.h"
#include "comm/join/meeting.h"
#include "comm/join/patient_store.h"
#include "comm/join/roll_call.h"
#include "comm/transports/alarm.h"
#include "comm/transports/peer_listener.h"
#include "comm/transports/shared_group.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

class Job {
 public:
  // Dials the store and the supervisor. Waits for no other rank.
  static Result<std::unique_ptr<Job>> join(Identity identity, std::chrono::milliseconds timeout);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // What the communicator of all ranks is made of (world.h).
  struct World {
    std::vector<Seat> seats;
    std::int32_t self = 0;
    std::shared_ptr<SharedSegment> segment;  // Null: no other rank is on this host.
    std::chrono::milliseconds timeout{0};
  };
  // Collective over all ranks; waits for them, and names those who did not come.
  Result<World> form_world();

  const Identity& identity() const { return identity_; }
  const std::string& source() const { return source_; }       // Says who assigned this rank.
  store::Client* store() const { return store_.get(); }       // Null: a world of one.
  ControlClient* control() const { return control_.get(); }   // Null: no supervisor.
  PeerListener* listener() const { return listener_.get(); }  // Null: all ranks are on one host.
  // The rows that all ranks were given beside the built-in table of algorithms.
  const TuningTable& tuning() const { return tuning_; }
  std::uint32_t tcp_streams() const { return tcp_streams_; }  // As in TcpMeshOptions.
  // True if all ranks of this machine can run at once: only then waits spin.
  bool has_processor_each() const { return has_processor_each_; }
  bool is_crowded() const { return is_crowded_; }
  // This machine's caches, agreed on by all its ranks.
  const Caches& caches() const { return caches_; }
  // True if that rank of this host has finalized its world. Used only without a supervisor, whose
  // page tells it.
  bool has_left(std::int32_t world_rank) const;
  std::unique_ptr<Alarm> make_alarm(const std::string& communicator, const std::vector<Seat>& seats,
                                    std::int32_t self) const;
  // Reports a failure that every rank of the communicator has to know to the supervisor, if there
  // is one.
  void report(const Failure& failure, const std::string& communicator);
  // Returns why a communicator that spans hosts is broken, as its first rank to say so told it:
  // this rank's failure, unless another rank's is stored already. Under a supervisor it returns
  // `failure` itself: all ranks see the supervisor's page.
  Failure agree(const Failure& failure, const std::string& communicator);
  // The death for which form_world() gave up; nothing: it had another reason.
  const std::optional<Failure>& init_failure() const { return init_failure_; }
  // Tells the store what this rank, which waits between hosts, has entered, and compares it with
  // what another rank stored. The failure blames that rank by its rank in the communicator.
  // Nothing: both agree as far as they know, or no rank has stored anything.
  std::optional<Failure> compare(const std::string& communicator, const EnteredOperations& own);
  // The records in which the ranks of a communicator that spans hosts say what they wait for.
  RollCall::Store wait_records(const std::string& communicator);
  // Wakes threads that wait at sockets when the supervisor's page, or without one the store, has
  // events; null: one host.
  JobBell* bell() const { return bell_.get(); }
  // Takes a row of the status page for a communicator; nothing: all are taken, or there is no page.
  std::optional<std::uint32_t> take_row(const std::string& communicator);
  void give_back_row(std::uint32_t row);
  // Returns a key in the store that is unique to this world, once all ranks have met.
  std::string key(const std::string& name) const;

 private:
  Job(Identity identity, std::chrono::milliseconds timeout);
  Result<PeerCredentials> connect_to_store();
  Result<PeerCredentials> meet_without_ivyrun();
  Result<void> attach_to_supervisor();
  Result<std::vector<Seat>> exchange_seats();
  Result<void> meet_all_ranks();
  std::string own_seat(const std::string& tuning) const;
  void count_processors(const std::vector<Processors>& processors,
                        const std::vector<Quotas>& quotas);
  std::string seat_key(std::uint64_t rank) const;
  std::string name_in_page(const std::string& communicator) const;
  Error give_up_init(const Failure& death);
  Result<std::vector<Seat>> watched_exchange();
  std::optional<Failure> find_agreed(const std::string& communicator) const;
  void listen_to_store();
  void ring();
  Result<std::unique_ptr<SharedSegment>> share_world_segment(
      const std::vector<Seat>& seats, const std::vector<std::int32_t>& local);
  template <class Wait>
  auto wait_for_living(Alarm& alarm, Wait wait) -> decltype(wait(std::chrono::milliseconds()));

  const Identity identity_;
  const std::chrono::milliseconds timeout_;
  const std::string source_;
  const std::uint32_t joined_;  // How many times this process has joined before.
  // Identifies this world of the job, equal on all its ranks and different for every other world,
  // so that what an earlier one left in the store and on the status page is not taken for ours.
  std::string life_;
  bool has_processor_each_ = true;
  TuningTable tuning_;
  bool is_crowded_ = false;
  Caches caches_;
  std::uint32_t tcp_streams_ = 0;
  std::string first_host_address_;
  std::optional<Failure> init_failure_;
  std::unique_ptr<OwnStore> own_store_;  // Rank 0's without ivyrun. Ends after store_.
  std::unique_ptr<NoteFile> note_;       // Kept until all ranks have come.
  std::unique_ptr<store::Client> store_;
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<PeerListener> listener_;
  std::atomic<std::uint32_t> rings_{0};
  std::unique_ptr<JobBell> bell_;  // Ends before control_ or store_, which it watches.
  mutable PatientStore limited_store_;
  // The world's memory on this host, and which ranks have which part of it.
  std::shared_ptr<SharedSegment> world_segment_;
  std::vector<std::int32_t> world_members_;
  std::mutex rows_mutex_;
  std::vector<bool> rows_;
};

// Builds the local part of a communicator from a segment; shared by world and groups.
struct LocalPart {
  std::unique_ptr<Alarm> alarm;
  std::unique_ptr<SharedGroup> group;  // Null: no other rank is on this host.
};
LocalPart make_local_part(const Job& job, const std::string& communicator,
                          const std::vector<Seat>& seats, std::int32_t self,
                          std::shared_ptr<SharedSegment> segment);

// Ranks of `seats` on the same host as `self`, in order.
std::vector<std::int32_t> local_ranks(const std::vector<Seat>& seats, std::int32_t self);

}  // namespace ivy::comm
