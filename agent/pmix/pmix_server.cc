// SPDX-License-Identifier: Apache-2.0
// The first half has the functions that libpmix calls on its own thread (on_connected(), on_fence()
// and so on); Upcall adapts each to libpmix's signature, and server_module() lists them. They
// convert the arguments and call PmixServerEvents. The second half is PmixServer, the calls in the
// other direction. pmix_host.cc is the only user.
#include "agent/pmix/pmix_server.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <span>
#include <tuple>
#include <utility>

#include "agent/pmix/info_array.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Adapts a function to the signature with which libpmix calls it: passes the many arguments as one
// tuple.
//
//   pmix_status_t on_abort(const Upcall<pmix_server_abort_fn_t>::Arguments& call) {
//     const auto& [rank, object, status, text, ranks, count, done, context] = call;
//     ...
//   }
//   module.abort = Upcall<pmix_server_abort_fn_t>::call<on_abort>;
template <class Function>
struct Upcall;

template <class Answer, class... Parts>
struct Upcall<Answer (*)(Parts...)> {
  using Arguments = std::tuple<Parts...>;

  template <Answer (*handler)(const Arguments&)>
  static Answer call(Parts... parts) {
    return handler(Arguments(parts...));
  }
};

// The state of the module's functions, to which libpmix passes no pointer of ivyrun. It exists from
// PmixServer::start(), which may be called once, until the process exits.
struct ModuleState {
  PmixLibrary pmix;
  PmixServerEvents& events;
  std::string name;
  // Ranks between MPI_Init and MPI_Finalize. Used by libpmix's thread only.
  std::set<pmix_rank_t> present;
};
ModuleState* module_state = nullptr;

// Releases the waiting rank. Newer libraries expect the answer as the return value, older ones
// through a call of `done`.
pmix_status_t release(pmix_op_cbfunc_t done, void* context) {
  if (done == nullptr) return PMIX_OPERATION_SUCCEEDED;
  done(PMIX_SUCCESS, context);
  return PMIX_SUCCESS;
}

using Connected = Upcall<pmix_server_client_connected2_fn_t>;
using Finalized = Upcall<pmix_server_client_finalized_fn_t>;
using Aborted = Upcall<pmix_server_abort_fn_t>;
using Fence = Upcall<pmix_server_fencenb_fn_t>;
using Group = Upcall<pmix_server_grp_fn_t>;
using Modex = Upcall<pmix_server_dmodex_req_fn_t>;
using Spawn = Upcall<pmix_server_spawn_fn_t>;
using Notified = Upcall<pmix_notification_fn_t>;

pmix_status_t on_connected(const Connected::Arguments& call) {
  const auto& [rank, object, infos, info_count, done, context] = call;
  module_state->present.insert(rank->rank);
  module_state->events.on_joined(rank->rank);
  return release(done, context);
}

pmix_status_t on_finalized(const Finalized::Arguments& call) {
  const auto& [rank, object, done, context] = call;
  if (module_state->present.erase(rank->rank) == 1) module_state->events.on_left(rank->rank);
  return release(done, context);
}

pmix_status_t on_abort(const Aborted::Arguments& call) {
  const auto& [rank, object, status, text, victims, victim_count, done, context] = call;
  module_state->events.on_aborted(rank->rank, status, text == nullptr ? "" : text);
  return release(done, context);
}

pmix_status_t status_of(const Error& error) {
  if (error.code == Code::kInvalidArgument) return PMIX_ERR_BAD_PARAM;
  if (error.code == Code::kNotFound) return PMIX_ERR_NOT_FOUND;
  if (error.code == Code::kFailedPrecondition) return PMIX_ERR_NOT_SUPPORTED;
  return PMIX_ERR_LOST_CONNECTION;
}

// Hands bytes to libpmix, which frees them with a callback when it no longer needs them.
BlobAnswer answer_to(pmix_modex_cbfunc_t done, void* context) {
  return [done, context](Result<std::string> blob) {
    if (!blob.ok()) return done(status_of(blob.error()), nullptr, 0, context, nullptr, nullptr);
    auto* const bytes = new std::string(std::move(blob).value());
    const pmix_release_cbfunc_t forget = [](void* given) {
      delete static_cast<std::string*>(given);
    };
    done(PMIX_SUCCESS, bytes->data(), bytes->size(), context, forget, bytes);
  };
}

// Returns true if all processes are ranks of this job: another job's ranks cannot take part here.
bool are_in_job(std::span<const pmix_proc_t> processes) {
  for (const pmix_proc_t& process : processes)
    if (module_state->name != process.nspace) return false;
  return true;
}

// Returns an empty list if the processes stand for the whole job.
std::vector<std::uint32_t> ranks_of(std::span<const pmix_proc_t> processes) {
  std::vector<std::uint32_t> ranks;
  for (const pmix_proc_t& process : processes) {
    if (process.rank == PMIX_RANK_WILDCARD) return {};
    ranks.push_back(process.rank);
  }
  return ranks;
}

pmix_status_t on_fence(const Fence::Arguments& call) {
  const auto& [processes, count, infos, info_count, data, size, done, context] = call;
  std::string own;
  if (data != nullptr) own.assign(data, size);
  std::free(data);  // Owned by this function.
  const std::span<const pmix_proc_t> members(processes, count);
  if (!are_in_job(members)) return PMIX_ERR_NOT_SUPPORTED;
  module_state->events.on_fence(ranks_of(members), std::move(own), answer_to(done, context));
  return PMIX_SUCCESS;
}

// Directives of a group's members, other than its id.
struct GroupDirectives {
  bool is_local = false;       // All members are on this host, so they need no context id.
  bool wants_context = false;  // They need a context id.
  bool adds_members = false;   // Ranks that have not called are to be added as members.
  std::string own;
};

bool is_true(const pmix_value_t& value) {
  return value.type == PMIX_UNDEF || (value.type == PMIX_BOOL && value.data.flag);
}

GroupDirectives directives_of(std::span<const pmix_info_t> infos) {
  GroupDirectives all;
  for (const auto& [key, flags, value] : infos) {
    const std::string_view name = key;
    if (name == PMIX_GROUP_LOCAL_ONLY) all.is_local = is_true(value);
    if (name == PMIX_GROUP_ASSIGN_CONTEXT_ID) all.wants_context |= is_true(value);
    if (name == PMIX_GROUP_ADD_MEMBERS) all.adds_members = true;
    if (name == PMIX_GROUP_ENDPT_DATA && value.type == PMIX_BYTE_OBJECT)
      all.own.assign(value.data.bo.bytes, value.data.bo.size);
  }
  return all;
}

// Fills in the answer to a group's members: its context id, its members, and the contributions of
// all hosts.
Result<void> load_group(InfoArray& infos, const GroupResult& group, bool wants_context,
                        std::span<const pmix_proc_t> members) {
  if (wants_context) IVY_CHECK(infos.add_size(PMIX_GROUP_CONTEXT_ID, group.context));
  IVY_CHECK(infos.add_processes(PMIX_GROUP_MEMBERSHIP, members));
  if (group.data.empty()) return {};
  return infos.add_bytes(PMIX_GROUP_ENDPT_DATA, group.data);
}

GroupAnswer answer_to_group(const Group::Arguments& call, bool wants_context) {
  const auto& [operation, id, processes, count, infos, info_count, done, context] = call;
  std::vector<pmix_proc_t> members;  // Copied: libpmix may free its array before the answer.
  if (operation == PMIX_GROUP_CONSTRUCT) members.assign(processes, processes + count);
  return [=, done = done, context = context](const Result<GroupResult>& group) {
    const auto fail = [&](pmix_status_t why) { done(why, nullptr, 0, context, nullptr, nullptr); };
    if (!group.ok()) return fail(status_of(group.error()));
    if (members.empty()) return fail(PMIX_SUCCESS);
    auto info = std::make_unique<InfoArray>(module_state->pmix);
    if (!load_group(*info, *group, wants_context, members).ok()) return fail(PMIX_ERR_NOMEM);
    const pmix_release_cbfunc_t forget = [](void* given) { delete static_cast<InfoArray*>(given); };
    InfoArray* const given = info.release();
    done(PMIX_SUCCESS, given->data(), given->size(), context, forget, given);
  };
}

pmix_status_t on_group(const Group::Arguments& call) {
  const auto& [operation, id, processes, count, infos, info_count, done, context] = call;
  const std::span<const pmix_proc_t> members(processes, count);
  if (id == nullptr || !are_in_job(members)) return PMIX_ERR_NOT_SUPPORTED;
  GroupDirectives wanted = directives_of({infos, info_count});
  if (wanted.adds_members) return PMIX_ERR_NOT_SUPPORTED;
  // Not through `done`: libpmix 5.0 would then request the end of a group a second time, in vain.
  if (wanted.is_local) return PMIX_OPERATION_SUCCEEDED;
  module_state->events.on_group(
      {operation == PMIX_GROUP_DESTRUCT, id, ranks_of(members), std::move(wanted.own)},
      answer_to_group(call, wanted.wants_context));
  return PMIX_SUCCESS;
}

pmix_status_t on_direct_modex(const Modex::Arguments& call) {
  const auto& [rank, infos, info_count, done, context] = call;
  if (module_state->name != rank->nspace) return PMIX_ERR_NOT_FOUND;
  module_state->events.on_data_request(rank->rank, answer_to(done, context));
  return PMIX_SUCCESS;
}

// Without this function libpmix rejects the call too, but the user does not learn why.
pmix_status_t on_spawn(const Spawn::Arguments& call) {
  const auto& [parent, infos, info_count, programs, program_count, done, context] = call;
  module_state->events.on_spawn_rejected(parent->rank);
  return PMIX_ERR_NOT_SUPPORTED;
}

void on_event(const Notified::Arguments& call) {
  const auto& [id, status, source, infos, info_count, results, result_count, done, context] = call;
  if (status == PMIX_ERR_LOST_CONNECTION && module_state->name == source->nspace &&
      module_state->present.erase(source->rank) == 1)
    module_state->events.on_vanished(source->rank);
  if (done != nullptr) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, context);
}

// A module with room for the members that newer libraries have added.
struct ExtensibleModule {
  pmix_server_module_t known = {};
  void* unknown[32] = {};
};

ExtensibleModule* server_module(bool has_groups) {
  static ExtensibleModule all;
  // Leave job_control unset, so that libpmix does not keep the lists of files that ranks register
  // for removal. It would remove Open MPI 4.1's segments as soon as a rank has finalized, while the
  // rank itself removes them; the rank would then complain.
  all.known.client_connected2 = Connected::call<on_connected>;
  all.known.client_finalized = Finalized::call<on_finalized>;
  all.known.abort = Aborted::call<on_abort>;
  all.known.fence_nb = Fence::call<on_fence>;
  if (has_groups) all.known.group = Group::call<on_group>;
  all.known.direct_modex = Modex::call<on_direct_modex>;
  all.known.spawn = Spawn::call<on_spawn>;
  return &all;
}

// An operation that libpmix may carry out immediately or on its own thread.
class Operation {
 public:
  static void done(pmix_status_t status, void* operation) {
    static_cast<Operation*>(operation)->status_.set_value(status);
  }
  // `started` is the return value of the call that received done() and this object.
  pmix_status_t result(pmix_status_t started) {
    if (started == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    return started == PMIX_SUCCESS ? status_.get_future().get() : started;
  }

 private:
  std::promise<pmix_status_t> status_;
};

}  // namespace

Result<std::unique_ptr<PmixServer>> PmixServer::start(const PmixLibrary& pmix,
                                                      const PmixSetup& setup,
                                                      PmixServerEvents& events) {
  IVY_ASSERT(module_state == nullptr);
  module_state = new ModuleState{pmix, events, setup.name, {}};
  std::unique_ptr<PmixServer> server(new PmixServer(pmix, setup.name));
  IVY_CHECK(server->initialize(setup));
  IVY_CHECK(server->watch_losses());
  IVY_CHECK(server->add_namespace(setup));
  return server;
}

Result<void> PmixServer::initialize(const PmixSetup& setup) const {
  InfoArray infos(pmix_);
  const Fact facts[] = {
      {PMIX_SERVER_TMPDIR, setup.server_directory},
      {PMIX_SYSTEM_TMPDIR, setup.server_directory},
      {PMIX_HOSTNAME, setup.host_name},
      // Workers learn this name before the server runs (node/workers/mpi_identity.h).
      {PMIX_SERVER_NSPACE, std::string("ivyrun-pmix")},
      {PMIX_SERVER_RANK, setup.host},
      // Otherwise each rank detects the processors itself, which takes 100 ms.
      {PMIX_SERVER_SHARE_TOPOLOGY, true},
      {PMIX_USERID, std::uint32_t{getuid()}},
      {PMIX_GRPID, std::uint32_t{getgid()}},
  };
  for (const Fact& fact : facts) IVY_CHECK(infos.add(fact));
  ExtensibleModule* const module = server_module(serves_groups(pmix_.get_version()));
  const pmix_status_t status = pmix_.server_init(&module->known, infos.data(), infos.size());
  if (status == PMIX_SUCCESS) return {};
  return Error{Code::kUnavailable,
               std::string(pmix_.get_version()) + " failed to start: " + pmix_.text_of(status)};
}

Result<void> PmixServer::watch_losses() const {
  std::promise<pmix_status_t> registered;
  const pmix_hdlr_reg_cbfunc_t done = [](pmix_status_t status, std::size_t, void* promise) {
    static_cast<std::promise<pmix_status_t>*>(promise)->set_value(status);
  };
  pmix_.register_event_handler(nullptr, 0, nullptr, 0, Notified::call<on_event>, done, &registered);
  const pmix_status_t status = registered.get_future().get();
  if (status >= PMIX_SUCCESS) return {};
  return Error{Code::kUnavailable, "register for libpmix's events: " + pmix_.text_of(status)};
}

Result<void> PmixServer::add_namespace(const PmixSetup& setup) const {
  InfoArray infos(pmix_);
  for (const Fact& fact : setup.facts.job) IVY_CHECK(infos.add(fact));
  for (const std::vector<Fact>& facts : setup.facts.ranks) {
    InfoArray rank(pmix_);
    for (const Fact& fact : facts) IVY_CHECK(rank.add(fact));
    IVY_CHECK(infos.add_array(PMIX_PROC_DATA, rank));
  }
  Operation operation;
  const pmix_status_t status = operation.result(
      pmix_.register_nspace(process(0).nspace, static_cast<int>(setup.ranks_here), infos.data(),
                            infos.size(), Operation::done, &operation));
  if (status == PMIX_SUCCESS) return {};
  return Error{Code::kInternal, "libpmix rejected the job: " + pmix_.text_of(status)};
}

pmix_proc_t PmixServer::process(std::uint32_t rank) const {
  pmix_proc_t process = {};
  std::strncpy(process.nspace, name_.c_str(), PMIX_MAX_NSLEN);
  process.rank = rank;
  return process;
}

Result<std::vector<std::string>> PmixServer::variables(std::uint32_t rank, gid_t group) {
  const pmix_proc_t one = process(rank);
  if (!registered_.contains(rank)) {
    Operation operation;
    const pmix_status_t status = operation.result(
        pmix_.register_client(&one, getuid(), group, nullptr, Operation::done, &operation));
    if (status != PMIX_SUCCESS)
      return Error{Code::kInternal, "libpmix rejected the rank: " + pmix_.text_of(status)};
    registered_.insert(rank);
  }
  char** block = nullptr;
  const pmix_status_t status = pmix_.setup_fork(&one, &block);
  if (status != PMIX_SUCCESS)
    return Error{Code::kInternal,
                 "libpmix did not return the variables of a rank: " + pmix_.text_of(status)};
  std::vector<std::string> variables;
  for (char** entry = block; entry != nullptr && *entry != nullptr; ++entry) {
    variables.emplace_back(*entry);
    std::free(*entry);
  }
  std::free(block);
  return variables;
}

// Parses "PMIX_SERVER_URI41=ivyrun-pmix.0;tcp4://127.0.0.1:60611": the port follows the last colon.
Result<std::uint16_t> PmixServer::port(std::uint32_t rank, gid_t group) {
  constexpr std::string_view kUri = "PMIX_SERVER_URI";
  for (const std::string& variable : IVY_TRY(variables(rank, group))) {
    if (!variable.starts_with(kUri)) continue;
    const auto port =
        to_number<std::uint16_t>(std::string_view(variable).substr(variable.rfind(':') + 1));
    if (port) return *port;
  }
  return Error{Code::kInternal, "libpmix does not report its address"};
}

void PmixServer::read(std::uint32_t rank, BlobAnswer answer) const {
  const pmix_proc_t one = process(rank);
  auto* const waiting = new BlobAnswer(std::move(answer));
  const pmix_dmodex_response_fn_t done = [](pmix_status_t status, char* data, std::size_t size,
                                            void* given) {
    const std::unique_ptr<BlobAnswer> callback(static_cast<BlobAnswer*>(given));
    if (status != PMIX_SUCCESS || data == nullptr)
      return (*callback)(Error{Code::kNotFound, "the rank has published nothing"});
    (*callback)(std::string(data, size));
  };
  const pmix_status_t status = pmix_.dmodex_request(&one, done, waiting);
  if (status == PMIX_SUCCESS) return;
  const std::unique_ptr<BlobAnswer> callback(waiting);
  (*callback)(Error{Code::kNotFound, pmix_.text_of(status)});
}

}  // namespace ivy
