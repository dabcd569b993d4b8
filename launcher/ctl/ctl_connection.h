// SPDX-License-Identifier: Apache-2.0
// Finds jobs by name and sends a request to the launcher of one of them. Blocking, with deadlines.
// Not thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/control/ctl_wire.h"
#include "launcher/job/control/ended_jobs.h"
#include "launcher/job/control/launcher_directory.h"
#include "launcher/options/option_types.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// Returns the job whose id starts with `prefix` or else whose --name equals it, or the only job if
// it is empty. The message of InvalidArgument lists the candidates; NotFound: there are no jobs.
Result<FoundJob> choose_job(const std::string& prefix);
// Chooses as choose_job() does, for verbs that need the job's launcher. Returns FailedPrecondition
// if the launcher has exited.
Result<FoundJob> choose_running_job(const std::string& prefix);
// Chooses from the given jobs, only by id. Pure. The message shows their `names`, by id.
using JobNames = std::map<std::string, std::string>;
Result<FoundJob> choose_job(const std::string& prefix, const std::vector<FoundJob>& jobs,
                            const JobNames& names = {});

// Returns the first digits of a job's id, as shown to people.
std::string short_id(const std::string& job_id);

class CtlConnection {
 public:
  // Limit for an answer of a running launcher, whose loop never blocks.
  static constexpr std::chrono::milliseconds kTimeout{5'000};

  // Connects and sends the request. Returns Unavailable if no launcher accepts the connection.
  static Result<CtlConnection> send_request(const LauncherDirectory& directory,
                                            const ctl::Request& request);

  // Returns the next reply. Fails with Unavailable if the launcher has exited, DeadlineExceeded
  // after `timeout`, and FailedPrecondition with the launcher's text if it rejects the request.
  Result<ctl::Reply> receive(std::chrono::milliseconds timeout = kTimeout);

  // For an event loop: the descriptor, non-blocking and owned by the caller, and the bytes already
  // read.
  int release() { return socket_.release(); }
  CtlDecoder& decoder() { return decoder_; }

 private:
  explicit CtlConnection(Descriptor socket) : socket_(std::move(socket)) {}
  Descriptor socket_;
  CtlDecoder decoder_{kMaxCtlReplyBytes};
};

// Parses a reply. Returns FailedPrecondition if the reply is a rejection.
Result<ctl::Reply> parse_reply(const std::string& message);

// Sends one request to a job's launcher and returns the reply.
Result<ctl::Reply> request_reply(const LauncherDirectory& directory, const ctl::Request& request,
                                 std::chrono::milliseconds timeout = CtlConnection::kTimeout);
Result<ctl::JobDescription> describe_job(const LauncherDirectory& directory);

// Returns NotFound if a job of this size has none of the requested ranks.
Result<void> check_ranks(const ShowRanks& wanted, std::uint32_t world_size);
// Adds the requested ranks to a request; adds nothing if all are requested. Returns NotFound if the
// job has none of them.
Result<void> add_ranks(const ShowRanks& wanted, const LauncherDirectory& directory,
                       google::protobuf::RepeatedPtrField<ctl::RankRange>& ranges);

// Returns "job 3f2a has finished: succeeded (exit code 0)".
std::string ended_text(const EndedJob& ended);

}  // namespace ivy
