{{- define "sis.chart" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/* What everything of the release is called. */}}
{{- define "sis.name" -}}
{{- $chart := include "sis.chart" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sis.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "sis.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Number of servers that are always there. */}}
{{- define "sis.minReplicas" -}}
{{- ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/* Number of servers that clients are given. */}}
{{- define "sis.maxReplicas" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/* Where clients call, one per line: the first servers by their names, dict "root" $ "count" 3. */}}
{{- define "sis.addresses" -}}
{{- $name := include "sis.name" .root -}}
{{- $host := printf "%s.%s.svc:%d" $name .root.Release.Namespace (int .root.Values.ports.grpc) -}}
{{- $addresses := list -}}
{{- range $i := until (int .count) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s" $name $i $host) -}}
{{- end -}}
{{- join "\n" $addresses -}}
{{- end -}}

{{/* Of the Redis that the chart starts. */}}
{{- define "sis.redisAddress" -}}
{{- printf "%s-redis.%s.svc:6379" (include "sis.name" .) .Release.Namespace -}}
{{- end -}}

{{/* Labels that pods are selected by: dict "root" $ "component" "server". */}}
{{- define "sis.selector" -}}
app.kubernetes.io/name: {{ include "sis.chart" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sis.labels" -}}
{{ include "sis.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "sis.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- $cuda := and (gt (int .Values.gpu.count) 0) (not (hasSuffix "-cuda" $tag)) -}}
{{- printf "%s:%s%s" .Values.image.repository $tag (ternary "-cuda" "" $cuda) -}}
{{- end -}}
{{- end -}}
