#include "proto/agent_config.h"
