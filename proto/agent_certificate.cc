#include "proto/agent_certificate.h"
