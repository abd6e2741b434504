variable "cluster_name" {
  description = "The setting clusterName."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", var.cluster_name))
    error_message = "cluster_name is 1 to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit."
  }
}

variable "interruption_queue" {
  description = "The name of the queue that is created, as in the setting interruptionQueue. Default: the cluster's name."
  type        = string
  default     = null
}

variable "node_role" {
  description = "The name of the role of the nodes, as in spec.role of the EC2NodeClasses."
  type        = string
}

variable "plan_principal" {
  description = "ARN of the CI role that makes plans. It can only read."
  type        = string
}

variable "allow_reboot" {
  description = "Whether the run role may reboot instances, for the gate RebootForRepair."
  type        = bool
  default     = false
}

variable "run_namespace" {
  description = "Namespace of the service account that runs reconciler."
  type        = string
  default     = "reconciler"
}

variable "run_service_account" {
  description = "The service account that runs reconciler, by EKS Pod Identity."
  type        = string
  default     = "reconciler"
}
