// SPDX-License-Identifier: Apache-2.0
// Shows a job's output in this terminal as ivyrun would: from its log files, or live from its
// launcher if it has none. Not thread-safe.
#pragma once

#include <optional>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"

namespace ivy {

struct FollowRequest {
  const CtlOptions* options = nullptr;
  ctl::JobDescription job;
  LauncherDirectory directory;  // For requests on other connections.
  // The connection on which Follow was requested and the description was received. Without it only
  // the current contents of the files are shown.
  std::optional<CtlConnection> connection;
  std::optional<int> last_lines;  // Lines of each file to start with; if empty, whole files.
  bool shows_messages = false;    // Shows ivyrun's own messages, too.
};

enum class FollowEnd {
  kShown,         // Everything in the files was shown.
  kJobEnded,      // Followed::end contains the verdict.
  kLauncherLost,  // The connection closed before the launcher announced the job's end.
  kNoAnswer,      // The launcher did not answer in time; Followed::error has the reason.
  kInterrupted,   // This process received Ctrl-C or TERM.
  kOutputClosed,  // The output no longer has a reader.
  kNoFiles,       // Followed::error has the reason.
};

struct Followed {
  FollowEnd how = FollowEnd::kShown;
  ctl::JobEnd end;
  std::string error;
};

// Requests Follow and receives the description. shows_messages: see FollowRequest; messages from
// before any client requested them come first.
Result<FollowRequest> start_following(const CtlOptions& options, const LauncherDirectory& directory,
                                      bool shows_messages);

// Returns when the job has ended, or when the requested output was shown. Returns NotFound if none
// of the requested ranks exists.
Result<Followed> follow_job(FollowRequest request);

}  // namespace ivy
