#include "launcher/links/agent_carrier.h"

namespace ivy {

MakeAgentLink agent_link_maker() { return {}; }

}  // namespace ivy
