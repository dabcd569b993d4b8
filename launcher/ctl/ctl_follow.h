// Shows a job's output in this terminal as ivyrun would: from its log files, or live from its
// launcher where it has none. Thread: any, one at a time.
#pragma once

#include <optional>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"

namespace ivy {

struct FollowRequest {
  const CtlOptions* options = nullptr;
  ctl::JobDescription job;
  JobPlace place;  // For questions beside the connection.
  // Follow has been asked for on it and the description has been received. Without it only what the
  // files hold now is shown.
  std::optional<CtlConnection> connection;
  std::optional<int> last_lines;  // Lines of each file to begin with; none: the whole files.
  bool shows_messages = false;    // Also ivyrun's own messages.
};

enum class FollowEnd {
  kShown,         // Everything in the files has been shown.
  kJobEnded,      // Followed::end has the verdict.
  kLauncherLost,  // The connection ended without a word.
  kNoAnswer,      // The launcher has not answered for long; Followed::trouble has the reason.
  kInterrupted,   // Ctrl-C or TERM to us.
  kOutputClosed,  // Our output has no reader any more.
  kNoFiles,       // Followed::trouble has the reason.
};

struct Followed {
  FollowEnd how = FollowEnd::kShown;
  ctl::JobEnd end;
  std::string trouble;
};

// Asks for Follow and receives the description. shows_messages: see FollowRequest; what was said
// while no client asked for messages comes first.
Result<FollowRequest> begin_to_follow(const CtlOptions& options, const JobPlace& place,
                                      bool shows_messages);

// Until the job ends, or what was asked for is shown. NotFound: no rank that is wanted is there.
Result<Followed> follow_job(FollowRequest request);

}  // namespace ivy
